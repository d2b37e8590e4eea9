# Completion of outboxctl for fish.
complete -c outboxctl -f -a '(outboxctl complete (commandline -opc)[2..])'
