#!/usr/bin/env bats
# told.bats - who is told what: each event at a terminal, in CI, in neither, with -v and with -q.

load ../../support/fake

setup() {
    dlock_setup
    fake_setup
    export S C L LOCK_ARGS= NAME
}

# told: the table on stdin against what tests/support/helpers/told.py sees.
told() {
    PYTHONPATH=$ROOT/tests/support/helpers PYTHONDONTWRITEBYTECODE=1 TERM=xterm \
        timeout -k 2 60 /usr/bin/python3 "$ROOT/tests/support/helpers/told.py" 3>&-
}

@test "what is printed depends on the event and on who reads it" {
    told <<'TABLE'
event                  |terminal        |CI              |neither     |-v               |-q
uncontended            |                |                |            |took             |
-n, held               |busy            |busy            |            |busy             |
waits, granted         |waits got       |waits got       |            |waits got took   |
wait runs out          |waits gave-up   |waits gave-up   |gave-up     |waits gave-up    |
store set up badly     |setup           |setup           |            |setup took       |
may not exclude        |exclusion       |exclusion       |exclusion   |exclusion took   |
detail                 |                |                |            |detail took      |
renewed late           |trouble over    |trouble over    |trouble over|took trouble over|
lost                   |lost            |lost            |lost        |took lost        |lost
not ours at the release|not-ours        |not-ours        |not-ours    |took not-ours    |not-ours
release not confirmed  |unclear         |unclear         |unclear     |took unclear     |
store silent           |connects silence|connects silence|silence     |connects silence |silence
store unreachable      |error           |error           |error       |error            |error
no such command        |no-command      |no-command      |no-command  |took no-command  |no-command
a signal ends the wait |waits           |waits           |            |waits            |
TABLE
}
