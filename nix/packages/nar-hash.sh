# nar_hash FILE: what `nix hash path` prints of a plain file that is not executable, without Nix: the SHA-256 of its archive form, in which
# every string has its length before it and zeros after it, up to eight bytes.
nar_hash() {
    local file=$1 size hex
    size=$(stat -c %s "$file")
    hex=$({
        _nar_string nix-archive-1
        _nar_string '('
        _nar_string type
        _nar_string regular
        _nar_string contents
        _nar_length "$size"
        cat "$file"
        _nar_zeros "$size"
        _nar_string ')'
    } | sha256sum)
    printf 'sha256-'
    printf "$(echo "${hex%% *}" | sed 's/../\\x&/g')" | base64
}
_nar_string() {
    _nar_length "${#1}"
    printf %s "$1"
    _nar_zeros "${#1}"
}
# Eight bytes, the lowest first.
_nar_length() {
    local n=$1 i
    for i in 1 2 3 4 5 6 7 8; do
        printf "\\x$(printf %02x $((n & 255)))"
        n=$((n >> 8))
    done
}
_nar_zeros() {
    local n=$(((8 - $1 % 8) % 8))
    while [ $n -gt 0 ]; do
        printf '\0'
        n=$((n - 1))
    done
}
