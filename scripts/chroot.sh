# Roots of other releases of Debian, for majors.sh and packaging/test.sh. To be sourced after common.sh. Needs root.

[ "$(id -u)" -eq 0 ] || die "only root can make a chroot"

# Processes in the chroot use the network settings of this machine.
copy_network_settings() { # copy_network_settings ROOT
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
    grep -ls '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$1/etc/apt/apt.conf.d"
    csplit -zs -f "$1/usr/local/share/ca-certificates/host" -b %03d.crt /etc/ssl/certs/ca-certificates.crt '/BEGIN CERT/' '{*}'
    chroot "$1" update-ca-certificates >/dev/null
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc"
    [ ! -e "$HOME/.m2/settings.xml" ] || install -D -t "$1/root/.m2" "$HOME/.m2/settings.xml"
}

# Lines of "URI SUITE COMPONENTS": where the packages of a release are.
package_sources() { # package_sources RELEASE
    local release=$1 uri suite
    if [ "$release" = noble ]; then # of Ubuntu
        for suite in noble noble-updates noble-security; do echo "http://archive.ubuntu.com/ubuntu $suite main universe"; done
    else # with the updates and security fixes of this machine: a module may need the minor release it was built with
        while read -r uri suite; do
            echo "$uri $release${suite#"${suite%%-*}"} main"
        done < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main' 'Origin: Debian')
    fi
}

# Debian has no package of Ubuntu's keys, so they are known by their sum.
fetch_ubuntu_keys() { # fetch_ubuntu_keys DIRECTORY
    local package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
    curl -fsS -o "$1/keys.deb" "http://archive.ubuntu.com/ubuntu/$package"
    sha256sum --quiet -c - <<<"36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $1/keys.deb"
    dpkg-deb -x "$1/keys.deb" "$1/keys"
}

make_root() { # make_root RELEASE ROOT
    local release=$1 root=$2 sources keys=() script=sid
    [ ! -d "$root" ] || return 0
    rm -rf "$root.new"
    mkdir -p "$root.new"
    sources=$(package_sources "$release")
    if [ "$release" = noble ]; then
        fetch_ubuntu_keys "$root.new"
        keys=(--keyring="$root.new/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
        script=gutsy # debootstrap uses this script for all later releases of Ubuntu
    fi
    debootstrap --variant=minbase --include=ca-certificates "${keys[@]}" "$release" "$root.new" "${sources%% *}" \
        "/usr/share/debootstrap/scripts/$script" >&2
    sed 's/^/deb /' <<<"$sources" >"$root.new/etc/apt/sources.list"
    copy_network_settings "$root.new"
    # Packages of servers start none.
    printf '#!/bin/sh\nexit 101\n' >"$root.new/usr/sbin/policy-rc.d"
    chmod +x "$root.new/usr/sbin/policy-rc.d"
    install -d "$root.new/etc/postgresql-common"
    echo 'create_main_cluster = false' >"$root.new/etc/postgresql-common/createcluster.conf"
    mv "$root.new" "$root"
}

# The mounts end with the namespace, whatever ends this script.
in_root() { # in_root ROOT COMMAND...
    unshare --mount bash -euc '
        root=$1
        shift
        for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
        mount -t tmpfs -o mode=1777 tmp "$root/tmp"
        exec chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"
    ' in_root "$@"
}
