# The reaper that reaper.rs starts. It is told of processes and folders, a line each, until its
# input ends, because the process at the other end of the pipe has ended, however that came. Then
# it kills the processes that still run, with their children, and removes the folders.
#
#   process PID STARTED     a process, and when it started, as process.rs has it
#   folder PATH             a folder
#   kept PATH               a folder that is not to be removed after all
trap '' HUP INT TERM
told=$(cat)

# What follows this word in the lines that begin with it.
all() {
    printf '%s\n' "$told" | sed -n "s/^$1 //p"
}

# When a process started; nothing if it has ended.
started() {
    if [ -d /proc/self ]; then
        stat=$(cat "/proc/$1/stat" 2>/dev/null) || return
        set -- ${stat##*) }
        case $1 in [ZX]) ;; *) echo "${20}" ;; esac
    else
        ps -o lstart= -p "$1" | sed 's/^ *//; s/ *$//'
    fi
}

all process | while read -r pid start; do
    [ "$(started "$pid")" = "$start" ] || continue
    # Standing still, it starts no more children.
    kill -STOP "$pid"
    kill -KILL $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) "$pid"
    tries=200
    while [ "$(started "$pid")" = "$start" ] && [ $((tries -= 1)) -gt 0 ]; do
        sleep 0.05
    done
done
all folder | while read -r folder; do
    all kept | grep -Fqx -e "$folder" || rm -rf -- "$folder"
done
