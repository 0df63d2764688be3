/* A wall clock that is ahead of the machine's by as many nanoseconds as stand in a file. It is loaded before the C
 * library and takes the place of its clock_gettime; the monotonic clocks stay as they are. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL

static _Atomic int64_t *ahead_ns;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("WALL_CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = mmap(NULL, sizeof *ahead_ns, PROT_READ, MAP_SHARED, file, 0);

    if (page == MAP_FAILED)
        abort(); /* never quietly the machine's own */
    ahead_ns = page;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, at);

    if (!failed && ahead_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = at->tv_sec * NS_PER_S + at->tv_nsec + atomic_load(ahead_ns);

        at->tv_sec = ns / NS_PER_S;
        at->tv_nsec = ns % NS_PER_S;
    }
    return failed;
}
