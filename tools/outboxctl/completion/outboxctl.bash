# Completion of outboxctl for bash.
_outboxctl() {
    mapfile -t COMPREPLY < <(compgen -W "$(outboxctl complete "${COMP_WORDS[@]:1:COMP_CWORD-1}")" -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o default -F _outboxctl outboxctl
