# Sourced by scripts that drive windlass with programs of others. What is installed is kept in target/outside, by name
# and version, so that a second check needs no network.

# Installs a package from PyPI at a version, once, and prints the folder of its programs.
python_tool() {
    local package="$1" version="$2"
    local venv="${CARGO_TARGET_DIR:-target}/outside/${package%%\[*}-${version}"
    if [[ ! -e "${venv}/installed" ]]; then
        rm -rf "${venv}"
        python3 -m venv "${venv}" >&2
        "${venv}/bin/pip" install --quiet --disable-pip-version-check "${package}==${version}" >&2
        touch "${venv}/installed"
    fi
    echo "$(realpath "${venv}")/bin"
}

# Makes sure that a program is there that Debian has a package of the same name for.
debian_tool() {
    local program="$1"
    if ! command -v "${program}" >/dev/null; then
        local as=()
        [[ "$(id -u)" == 0 ]] || as=(sudo)
        "${as[@]}" apt-get update --quiet --quiet >&2
        "${as[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install --quiet --quiet --yes --no-install-recommends "${program}" >/dev/null
    fi
}
