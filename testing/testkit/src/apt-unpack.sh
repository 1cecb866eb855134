# Unpacks a package of another release of Debian below a folder, alone or with all that it needs,
# with apt folders of its own: apt-unpack.sh RELEASE PACKAGE FOLDER alone|whole. The system's own
# packages stay as they are.
set -eu
suite=$1 package=$2 folder=$3 how=$4
rm -rf "$folder"
mkdir -p "$folder/apt/etc/apt.conf.d" "$folder/apt/etc/preferences.d" \
    "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial"
: >"$folder/apt/state/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$folder/apt/etc/sources.list"
apt() {
    apt-get -q -y -o "Dir::State=$folder/apt/state" -o "Dir::State::status=$folder/apt/state/status" \
        -o "Dir::Cache=$folder/apt/cache" -o "Dir::Etc=$folder/apt/etc" -o Dir::Etc::sourceparts=- \
        -o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}
apt update
case $how in
whole) apt --download-only --no-install-recommends install "$package" ;;
alone) (cd "$folder/apt/cache/archives" && apt download "$package") ;;
esac
for archive in "$folder"/apt/cache/archives/*.deb; do
    dpkg-deb -x "$archive" "$folder/unpacked"
done
rm -rf "$folder/apt"
mv "$folder/unpacked" "$folder/files"
