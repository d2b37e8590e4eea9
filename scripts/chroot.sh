# Roots of other releases of Debian, for majors.sh and packaging/test.sh. To be sourced after common.sh. Needs root.

[ "$(id -u)" -eq 0 ] || die "only root can make a chroot"

# What this machine knows of its network holds inside, too.
copy_network_settings() { # copy_network_settings ROOT
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
    grep -ls '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$1/etc/apt/apt.conf.d"
    csplit -zs -f "$1/usr/local/share/ca-certificates/host" -b %03d.crt /etc/ssl/certs/ca-certificates.crt '/BEGIN CERT/' '{*}'
    chroot "$1" update-ca-certificates >/dev/null
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc"
    [ ! -e "$HOME/.m2/settings.xml" ] || install -D -t "$1/root/.m2" "$HOME/.m2/settings.xml"
}

make_root() { # make_root RELEASE ROOT
    local release=$1 root=$2 uri suite
    [ ! -d "$root" ] || return 0
    rm -rf "$root.new"
    mkdir -p "$root.new"
    # With the updates and the security fixes that this machine has: a module may need the minor release that it was
    # built with.
    while read -r uri suite; do
        [ -e "$root.new/etc" ] || debootstrap --variant=minbase --include=ca-certificates "$release" "$root.new" "$uri" >&2
        echo "deb $uri $release${suite#"${suite%%-*}"} main"
    done < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main') >"$root.sources"
    mv "$root.sources" "$root.new/etc/apt/sources.list"
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
