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
