#!/usr/bin/env bats
# message_table.bats - who is told what: each event at a terminal, in CI, in neither, with -v and
# with -q.

load ../../support/fake

setup() {
    dlock_setup
    fake_setup
    export S C L LOCK_ARGS= NAME
}

# told: the table on stdin against what tests/support/helpers/message_table.py sees.
told() {
    PYTHONPATH=$ROOT/tests/support/helpers PYTHONDONTWRITEBYTECODE=1 TERM=xterm \
        timeout -k 2 60 /usr/bin/python3 "$ROOT/tests/support/helpers/message_table.py" 3>&-
}

# bats test_tags=plain
@test "what is printed depends on the event and on who reads it" {
    told <<'TABLE'
event                 |terminal        |CI              |neither     |-v                 |-q
uncontended           |                |                |            |is got             |
-n, held              |busy            |busy            |            |is busy            |
waits, granted        |waits got       |waits got       |            |is waits got       |
wait runs out         |waits gave-up   |waits gave-up   |gave-up     |is waits gave-up   |
store set up badly    |setup           |setup           |            |is setup got       |
may not exclude       |exclusion       |exclusion       |exclusion   |is exclusion got   |
detail                |                |                |            |is detail got      |
renewed late          |trouble over    |trouble over    |trouble over|is got trouble over|
lost                  |lost            |lost            |lost        |is got lost        |lost
not ours at release   |not-ours        |not-ours        |not-ours    |is got not-ours    |not-ours
release not confirmed |unclear         |unclear         |unclear     |is got unclear     |
store silent          |connects silence|connects silence|silence     |is connects silence|silence
store unreachable     |error           |error           |error       |is error           |error
no such command       |no-command      |no-command      |no-command  |is got no-command  |no-command
a signal ends the wait|waits           |waits           |            |is waits           |
TABLE
}
