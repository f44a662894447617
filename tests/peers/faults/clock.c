/* Preloaded into a process, this lets its wall clock be stepped without anybody else's: the first eight bytes of the file named by
   NORFAB_CLOCK_STEP are the seconds that are added to it. Monotonic clocks are left alone, as a real step does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *step;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("NORFAB_CLOCK_STEP");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) step = mapped;
    close(file);
}

static int64_t added(void) { return step ? *step : 0; }

int clock_gettime(clockid_t clock, struct timespec *out) {
    int failed = syscall(SYS_clock_gettime, clock, out) != 0;
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += added();
    return failed ? -1 : 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
