#compdef gpuhook
# That of the click that is here; Debian 12's would complete nothing the first time, if this file were it.
eval "$(gpuhook completion zsh)"
_gpuhook_completion "$@"
