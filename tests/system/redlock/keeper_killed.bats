#!/usr/bin/env bats
# keeper_killed.bats - what happens to this machine's side of a Redlock: the keeper killed at each
# of its system calls. A killed guard and a suspend are in contract/suite.bats.

load ../../support/redlockfile
load ../../support/keeper_killed

lock_of() { rl_uri "$NAME.$1${2:+.$2}"; }
export -f rl_uri rl_hosts

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,soak
@test "no tree survives a keeper killed at its system calls" { kill_at_points redlock; }
