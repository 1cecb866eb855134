/* A wall clock that a test moves: preloaded into a server, it adds to the system's clock the
 * microseconds that stand, as eight bytes, at the beginning of the file $WALLSHIFT. The file is
 * mapped, so a change of it is seen at once. The monotonic clocks are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("WALLSHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) shift = at;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (syscall(SYS_clock_gettime, clock, at)) return -1;
    if (shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t micros = *shift, seconds = micros / 1000000;
        int64_t nanos = at->tv_nsec + (micros - seconds * 1000000) * 1000;
        if (nanos < 0) { nanos += 1000000000; seconds--; }
        if (nanos >= 1000000000) { nanos -= 1000000000; seconds++; }
        at->tv_sec += seconds;
        at->tv_nsec = nanos;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
