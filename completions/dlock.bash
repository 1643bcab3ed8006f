# bash completion for dlock
# Made by completions/generate from the option table of dlock: do not edit.

# Sets _dlock_at to the index of LOCK in COMP_WORDS (-1: none yet), _dlock_end to its last piece: bash
# splits a URI at ':' and '='.
_dlock_find_lock() {
    local i word line=${COMP_LINE:0:COMP_POINT} glued want=
    _dlock_at=-1 _dlock_end=-1
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]} glued=1
        while [[ $line == [[:blank:]]* ]]; do line=${line#?} glued=; done
        line=${line#"$word"}
        ((i > 0)) || continue
        if ((_dlock_at >= 0)); then
            [[ $glued ]] || return
            _dlock_end=$i
            continue
        fi
        [[ $glued ]] && continue
        case $want in
        value)
            want=
            continue
            ;;
        lock)
            _dlock_at=$i _dlock_end=$i
            continue
            ;;
        esac
        case $word in
        --slots | --also | --also-shared | -w | -[!-]*w | --timeout | --wait | --success-codes | --skip-exit-code | --min-hold | -E | -[!-]*E | --conflict-exit-code | --note | --max-run | --ttl | --grace | --connect-timeout | --on-lost | --lost-exit-code | --holder | --events) want=value ;;
        --) want=lock ;;
        -*) ;;
        *) _dlock_at=$i _dlock_end=$i ;;
        esac
    done
}

# Completes "@NAME", of which $3 is typed and bash replaces $2: all of it, or what stands behind its last ':'.
_dlock_names() {
    local name head=${3%"$2"}
    while IFS= read -r name; do
        printf -v name %q "$name"
        [[ $name == "$3"* ]] && COMPREPLY+=("${name#"$head"}")
    done < <("$1" --print-names 2>/dev/null)
}

_dlock() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} _dlock_at _dlock_end
    COMPREPLY=()
    _dlock_find_lock
    if ((_dlock_at >= 0 && COMP_CWORD > _dlock_end)); then
        if [[ $cur == -* ]] && ((COMP_CWORD == _dlock_end + 1)); then
            COMPREPLY=($(compgen -W '-c --command --' -- "$cur"))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((_dlock_end + 1))
        elif ((COMP_CWORD == _dlock_end + 1)); then
            COMPREPLY=($(compgen -c -- "$cur"))
        else
            COMPREPLY=($(compgen -f -- "$cur"))
        fi
        return
    fi
    if ((_dlock_at < 0)); then
        case $prev in
        --slots) return ;;
        --also)
            COMPREPLY=($(compgen -f -- "$cur"))
            compopt -o filenames 2>/dev/null
            return
            ;;
        --also-shared)
            COMPREPLY=($(compgen -f -- "$cur"))
            compopt -o filenames 2>/dev/null
            return
            ;;
        -w | --timeout | --wait) return ;;
        --success-codes) return ;;
        --skip-exit-code) return ;;
        --min-hold) return ;;
        -E | --conflict-exit-code) return ;;
        --note) return ;;
        --max-run) return ;;
        --ttl) return ;;
        --grace) return ;;
        --connect-timeout) return ;;
        --on-lost)
            COMPREPLY=($(compgen -W 'kill term warn' -- "$cur"))
            return
            ;;
        --lost-exit-code) return ;;
        --holder) return ;;
        --events)
            COMPREPLY=($(compgen -f -- "$cur"))
            compopt -o filenames 2>/dev/null
            return
            ;;
        esac
        if [[ $cur == -* ]]; then
            COMPREPLY=($(compgen -W '
                -x -e --exclusive
                -s --shared
                --slots
                --also
                --also-shared
                -n --nonblock --nb --nonblocking
                -w --timeout --wait
                --retry
                --no-reentrant
                --once
                --success-codes
                --skip-exit-code
                --min-hold
                -E --conflict-exit-code
                --note
                -o --close
                -F --no-fork
                --max-run
                --fcntl
                -u --unlock
                --ttl
                --grace
                --connect-timeout
                --on-lost
                --lost-exit-code
                --status
                --list
                --all
                --break
                --holder
                --force
                --check
                --json
                --schema
                --forget
                --yes
                --held
                --events
                --syslog
                -v --verbose
                -q --quiet
                -h --help
                -V --version
                ' -- "$cur"))
            return
        fi
    fi
    if ((_dlock_at >= 0)) && [[ ${COMP_WORDS[_dlock_at]} == @* ]]; then
        local IFS=
        _dlock_names "${1:-dlock}" "${2-$cur}" "${COMP_WORDS[*]:_dlock_at:COMP_CWORD - _dlock_at + 1}"
        return
    fi
    COMPREPLY=($(compgen -f -- "$cur"))
    if [[ $cur ]] && ((COMP_CWORD == _dlock_at)); then
        local uris=($(compgen -W 'file:// mysql:// postgres:// redis:// redis+sentinel:// redis+unix:// rediss:// redlock:// redlocks:// zk://' -- "$cur"))
        # As a file's name its colon would be quoted; beside a file's nothing of it is inserted but what they share.
        if ((${#COMPREPLY[@]} == 0 && ${#uris[@]} > 0)); then
            compopt -o nospace 2>/dev/null
            COMPREPLY=("${uris[@]}")
            return
        fi
        COMPREPLY+=("${uris[@]}")
    fi
    compopt -o filenames 2>/dev/null
}
complete -F _dlock dlock
