#!/bin/sh
# Tries the package in a fresh root: installs, uses and purges it. Ends with the first failure.
set -eux
export HOME=/root
dpkg -i /holdline.deb
holdline --version
test "$(holdline run x -- echo ours)" = ours
test -s /usr/share/bash-completion/completions/holdline
test -s /usr/share/man/man1/holdline-run.1.gz
gzip -dc /usr/share/man/man1/holdline.1.gz | grep -q '^\.TH holdline 1'
test -s '/usr/share/doc/holdline/examples/systemd/holdline-job@.service'

# The machine-wide folder is for the group.
test "$(stat -c '%U %G %a' /var/lib/holdline)" = 'root holdline 2771'
useradd -m -G holdline member
useradd -m other

# While there is no machine-wide file, each user has one of their own.
test "$(su other -s /bin/sh -c 'holdline run x -- echo own')" = own
said=$(su member -s /bin/sh -c 'holdline run --store sqlite:/var/lib/holdline/member.db x -- echo in')
test "$said" = in
if su other -s /bin/sh -c 'holdline try --store sqlite:/var/lib/holdline/member.db x'; then
    echo 'a user outside of the group gets in' >&2
    exit 1
fi

# Once there is one, it is the default: root's job keeps the member's out, and others are refused.
holdline --store 'sqlite:/var/lib/holdline/locks.db?group=holdline' status
busy='holdline run -n x -- true'
code="$(holdline run x -- sh -c "su member -s /bin/sh -c 'unset HOLDLINE_STORE HOLDLINE_HELD; $busy'; echo \$?")"
test "$code" = 75
code="$(su other -s /bin/sh -c "$busy; echo \$?")"
test "$code" = 69

dpkg --remove holdline
test -e /var/lib/holdline/locks.db
test ! -e /usr/bin/holdline
dpkg --purge holdline
test -e /var/lib/holdline/member.db # somebody's file, and not the machine-wide one
test ! -e /var/lib/holdline/locks.db
