# fish completion for dlock
# Made by completions/generate from the option table of dlock: do not edit.

# Prints the words behind LOCK, one a line; fails when LOCK is still to come.
function __dlock_behind_lock
    set -l words (commandline -opc)
    set -l want 0
    set -l lock 0
    set -e words[1]
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        if test $want = 1
            set want 0
            continue
        end
        switch $word
            case --slots --also --also-shared -w --timeout --wait --success-codes --skip-exit-code --min-hold -E --conflict-exit-code --note --max-run --ttl --grace --connect-timeout --on-lost --lost-exit-code --holder --events
                set want 1
            case --
                set -q words[1]; or return 1
                set -e words[1]
                set lock 1
                break
            case '-*'
            case '*'
                set lock 1
                break
        end
    end
    test $lock = 1; or return 1
    set -q words[1]; and printf '%s\n' $words
    return 0
end

function __dlock_before_lock
    not __dlock_behind_lock >/dev/null
end

function __dlock_command
    set -l words (__dlock_behind_lock)
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c dlock -n __dlock_before_lock -F
complete -c dlock -n 'not __dlock_before_lock' -f -a '(__dlock_command)'
complete -c dlock -n __dlock_before_lock -a 'file:// mysql:// postgres:// redis:// redis+sentinel:// redis+unix:// rediss:// redlock:// redlocks:// zk://'
complete -c dlock -n '__dlock_before_lock; and string match -q "@*" -- (commandline -ct)' -a '(dlock --print-names 2>/dev/null)'
complete -c dlock -n 'not __dlock_before_lock; and not count (__dlock_behind_lock) >/dev/null' -f -a '-c --command --'
complete -c dlock -n __dlock_before_lock -s x -s e -l exclusive -d 'one holder at a time (the default)'
complete -c dlock -n __dlock_before_lock -s s -l shared -d 'share it with other shared holders'
complete -c dlock -n __dlock_before_lock -l slots -x -d 'share it with N - 1 others that say the same'
complete -c dlock -n __dlock_before_lock -l also -r -F -d 'hold this lock, too: all of them or none'
complete -c dlock -n __dlock_before_lock -l also-shared -r -F -d 'the same for a shared one'
complete -c dlock -n __dlock_before_lock -s n -l nonblock -l nb -l nonblocking -d 'do not wait: exit 75 when the lock is held'
complete -c dlock -n __dlock_before_lock -s w -l timeout -l wait -x -d 'wait at most this long, then exit 75 (default: $DLOCK_TIMEOUT, or no limit)'
complete -c dlock -n __dlock_before_lock -l retry -d 'try again while the store cannot be reached, for as long as -w allows'
complete -c dlock -n __dlock_before_lock -l no-reentrant -d 'under a dlock that holds LOCK: exit 75, do not run under its lock'
complete -c dlock -n __dlock_before_lock -l once -d 'do not run if COMMAND has succeeded within DUR (default 30d)'
complete -c dlock -n __dlock_before_lock -l success-codes -x -d 'with --once: exit codes that are a success (default 0)'
complete -c dlock -n __dlock_before_lock -l skip-exit-code -x -d 'with --once: exit N when it is not run again (default 0)'
complete -c dlock -n __dlock_before_lock -l min-hold -x -d 'hold LOCK for at least DUR, from its grant on'
complete -c dlock -n __dlock_before_lock -s E -l conflict-exit-code -x -d 'exit N instead of 75'
complete -c dlock -n __dlock_before_lock -l note -x -d 'a text that --status shows to others (default: $DLOCK_NOTE)'
complete -c dlock -n __dlock_before_lock -s o -l close -d 'files: the command does not inherit the lock'
complete -c dlock -n __dlock_before_lock -s F -l no-fork -d 'files: become the command'
complete -c dlock -n __dlock_before_lock -l max-run -x -d 'end the command when it has run for so long: TERM, KILL after the grace, exit 124'
complete -c dlock -n __dlock_before_lock -l fcntl -d 'files: use fcntl(2) locks, not those of flock(2)'
complete -c dlock -n __dlock_before_lock -s u -l unlock -d 'unlock the open file FD'
complete -c dlock -n __dlock_before_lock -l ttl -x -d 'length of the lease, which is renewed while the command runs (default: $DLOCK_TTL, or 30s)'
complete -c dlock -n __dlock_before_lock -l grace -x -d 'time from TERM to KILL when the lease cannot be renewed (default: ttl/6, at most 5s)'
complete -c dlock -n __dlock_before_lock -l connect-timeout -x -d 'give up when no server answers for this long (default 5s)'
complete -c dlock -n __dlock_before_lock -l on-lost -x -a 'kill term warn' -d 'what to do to the command when the lock is lost (default term)'
complete -c dlock -n __dlock_before_lock -l lost-exit-code -x -d 'exit N instead of 79 when the lock was lost'
complete -c dlock -n __dlock_before_lock -l status -d 'show holders and waiters of LOCK; exit 0: free, 75: held'
complete -c dlock -n __dlock_before_lock -l list -d 'show all locks of a store; LOCK: the store, also with #PATTERN (default: that of @NAME)'
complete -c dlock -n __dlock_before_lock -l all -d 'with --list: also free locks with a run record'
complete -c dlock -n __dlock_before_lock -l break -d 'take LOCK away from its holder, whose command is ended first; asks at a terminal'
complete -c dlock -n __dlock_before_lock -l holder -x -d 'with --break: the holder, as HOST:PID or token'
complete -c dlock -n __dlock_before_lock -l force -d 'with --break: at once; its command may go on'
complete -c dlock -n __dlock_before_lock -l check -d 'try what a run needs of the store, and look for settings that weaken LOCK'
complete -c dlock -n __dlock_before_lock -l json -d 'with --status, --list, --check: as JSON'
complete -c dlock -n __dlock_before_lock -l schema -d 'print the SQL statement that makes LOCK\'s table'
complete -c dlock -n __dlock_before_lock -l forget -d 'remove the record of --once, so that COMMAND may run again; asks at a terminal'
complete -c dlock -n __dlock_before_lock -l yes -d 'with --forget, --break: do not ask'
complete -c dlock -n __dlock_before_lock -l held -d 'inside a command: print for how many ms its lock is safe (inf: no lease); exit 79: it is not held'
complete -c dlock -n __dlock_before_lock -l events -r -F -d 'tell a program what happens, in lines of JSON (default: $DLOCK_EVENTS)'
complete -c dlock -n __dlock_before_lock -l syslog -d 'tell the system\'s log of each run, skipped ones too (default: cron)'
complete -c dlock -n __dlock_before_lock -s v -l verbose -d 'say all that a terminal would show, and details'
complete -c dlock -n __dlock_before_lock -s q -l quiet -d 'say only errors and losses'
complete -c dlock -n __dlock_before_lock -s h -l help -d 'this text'
complete -c dlock -n __dlock_before_lock -s V -l version -d 'version and stores'
