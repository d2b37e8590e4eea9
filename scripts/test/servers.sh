# Servers and clients that are not packages of Debian, for tests of sinks and sources. To be sourced by test.sh.

# Installs them below the build directory; tests/system/sinks/servers.py runs them. Google's emulator of Pub/Sub is not a
# package of Debian; it is used where it is installed. If a server cannot be installed, the tests that need it report that.
install_servers() {
    local servers packages=("${broker_packages[@]}")
    servers=$(realpath -m "$build")/servers
    PATH=$PATH:/usr/local/go/bin
    command -v java >/dev/null || packages+=(default-jre-headless)
    command -v mvn >/dev/null || packages+=(maven)
    command -v go >/dev/null || packages+=(golang)
    need_packages "${packages[@]}"
    mkdir -p "$servers"
    go_program tests/system/sinks/pstest_front pstest_front || say "could not build the front of pstest"
    installed requirements.txt || install_python || say "could not install moto and the clients"
    installed kafka/pom.xml || install_kafka || say "could not install Kafka"
    [ -z "$whole" ] || install_long_servers
}

# What only tests of the long run need.
install_long_servers() {
    local packages=("${long_packages[@]}") package
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    command -v npm >/dev/null || packages+=(npm)
    ! apt-cache show chromium-driver >/dev/null 2>&1 || packages+=(chromium chromium-driver) # Ubuntu has them outside of apt
    for package in "${neighbour_packages[@]}"; do
        ! apt-cache show "$package" >/dev/null 2>&1 || packages+=("$package")
    done
    need_packages "${packages[@]}"
    go_program tests/system/sinks/mochi_broker mochi_broker || say "could not build mochi, a broker of MQTT: it needs Go 1.21"
    go_program examples/go orders || say "could not build the example in Go"
    { installed webhooks/package.json && installed webhooks/verify.js; } || install_webhooks ||
        say "could not install the library of webhooks for JavaScript"
    installed elasticmq/pom.xml || install_elasticmq || say "could not install ElasticMQ"
    { installed debezium/pom.xml && installed debezium/Reader.java; } || install_debezium ||
        say "could not install Debezium"
    { installed spring/pom.xml "$repository/examples" && installed spring/Shop.java "$repository/examples"; } ||
        install_spring || say "could not build the example with Spring"
}

go_program() { (cd "$repository/$1" && go build -o "$servers/$2" .); } # go_program FOLDER NAME
installed() { cmp -s "${2:-$repository/tests}/$1" "$build/servers/$1"; } # installed FILE [DIRECTORY]

# This waits for the network, so it runs during the build.
installing=
begin_to_install() {
    install_servers &
    installing=$!
    beside+=("$installing")
}
servers_installed() {
    [ -z "$installing" ] || wait "$installing"
    installing=
}

install_python() {
    /usr/bin/python3 -m venv --clear "$build/servers/python" &&
        "$build/servers/python/bin/pip" install -q -r "$repository/tests/requirements.txt" &&
        cp "$repository/tests/requirements.txt" "$build/servers"
}

install_webhooks() {
    local target=$build/servers/webhooks
    rm -rf "$target"
    command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix "$target" \
        "$(sed -n 's/.*"\(standardwebhooks\)": "\(.*\)"/\1@\2/p' "$repository/tests/webhooks/package.json")" >&2 &&
        cp "$repository"/tests/webhooks/{package.json,verify.js} "$target"
}

install_elasticmq() {
    mvn -q -B -f "$repository/tests/elasticmq/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$build/servers/elasticmq" >&2 &&
        cp "$repository/tests/elasticmq/pom.xml" "$build/servers/elasticmq"
}

install_kafka() { # install_kafka [DIRECTORY [ARGUMENT...]]: of mvn
    local target=$build/servers/${1:-kafka}
    rm -rf "$target"
    mvn -q -B -f "$repository/tests/kafka/pom.xml" dependency:copy-dependencies "${@:2}" \
        -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        cp "$repository/tests/kafka/pom.xml" "$target"
}

install_debezium() {
    local target=$build/servers/debezium
    rm -rf "$target"
    mvn -q -B -f "$repository/tests/debezium/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        javac -cp "$target/*" -d "$target" "$repository/tests/debezium/Reader.java" &&
        cp "$repository/tests/debezium/pom.xml" "$repository/tests/debezium/Reader.java" "$target"
}

install_spring() {
    local target=$build/servers/spring source=$repository/examples/spring
    rm -rf "$target"
    mvn -q -B -f "$source/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        javac -cp "$target/*" -d "$target" "$source/Shop.java" &&
        cp "$source/pom.xml" "$source/Shop.java" "$target"
}
