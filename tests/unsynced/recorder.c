/* Records every change below UNSYNCED_ROOT to the file UNSYNCED_LOG, in the order in which the process makes them.

   Loaded with LD_PRELOAD. The harness reads the log after a SIGKILL and builds the directory that a power cut would have
   left: see replay.py. One lock orders operations and their records. A record is written after its operation, so that a
   sync is recorded only if it returned. Files are told apart by their inode. Changes through mmap are not seen.
   After UNSYNCED_CHANGES changes, where that is set, the process kills itself: always at the same place. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct __attribute__((packed)) head {
    uint32_t length; /* of the whole record */
    uint32_t kind;
    uint64_t inode, offset;
    uint32_t path, other; /* lengths; the data follows them */
};

static const char *root(void) {
    static const char *found;
    if (!found && !(found = getenv("UNSYNCED_ROOT"))) found = "/nowhere";
    return found;
}

static int below(const char *path) {
    size_t n = strlen(root());
    return !strncmp(path, root(), n) && (path[n] == 0 || path[n] == '/');
}

/* The absolute path of a name that may be relative; the names of the state directories have no links and no "..". */
static const char *full(int dir, const char *path, char *out) {
    char at[PATH_MAX];
    if (!path) return "";
    if (path[0] == '/') return path;
    if (dir == AT_FDCWD) {
        if (!getcwd(at, sizeof at)) return "";
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, at, sizeof at - 1);
        if (n < 0) return "";
        at[n] = 0;
    }
    snprintf(out, 2 * PATH_MAX, "%s/%s", at, path);
    return out;
}

static int tracked(int fd, struct stat *about) {
    char link[64], at[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, at, sizeof at - 1);
    if (n <= 0 || at[0] != '/') return 0;
    at[n] = 0;
    return below(at) && !fstat(fd, about);
}

static void record(char kind, uint64_t inode, uint64_t offset, const char *path, const char *other,
                   const struct iovec *data, int parts) {
    static int log = -1;
    int before = errno;
    if (log < 0 && getenv("UNSYNCED_LOG"))
        log = (int)syscall(SYS_openat, AT_FDCWD, getenv("UNSYNCED_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct head h = {sizeof h, (uint32_t)kind, inode, offset, (uint32_t)strlen(path), (uint32_t)strlen(other)};
    struct iovec all[64] = {{&h, sizeof h}, {(void *)path, h.path}, {(void *)other, h.other}};
    int n = 3;
    h.length += h.path + h.other;
    for (int i = 0; i < parts && n < 64; i++) {
        all[n++] = data[i];
        h.length += (uint32_t)data[i].iov_len;
    }
    if (syscall(SYS_writev, log, all, n) != (long)h.length) _exit(70);
    static long changes;
    const char *last = getenv("UNSYNCED_CHANGES");
    if (last && ++changes == atol(last)) kill(getpid(), SIGKILL);
    errno = before;
}

static void name(char kind, const char *path, const char *other) {
    struct stat about = {0};
    if (kind != 'u') lstat(*other ? other : path, &about);
    record(kind, about.st_ino, 0, path, other, NULL, 0);
}

/* The real functions are system calls: no other library is between this one and the kernel. */

static int opened(int dir, const char *path, int flags, mode_t mode) {
    char space[2 * PATH_MAX];
    const char *at = full(dir, path, space);
    if (!(flags & (O_CREAT | O_TRUNC)) || !below(at)) return (int)syscall(SYS_openat, dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat about;
    int there = !lstat(at, &about);
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && !there) name('c', at, "");
    if (fd >= 0 && there && (flags & O_TRUNC)) record('t', about.st_ino, 0, "", "", NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return opened(dir, path, flags, mode); }

static ssize_t written(int fd, const struct iovec *data, int parts, off_t offset) {
    struct stat about;
    if (!tracked(fd, &about) || !S_ISREG(about.st_mode))
        return offset < 0 ? syscall(SYS_writev, fd, data, parts) : syscall(SYS_pwritev, fd, data, parts, offset, 0);
    pthread_mutex_lock(&lock);
    ssize_t n = offset < 0 ? syscall(SYS_writev, fd, data, parts) : syscall(SYS_pwritev, fd, data, parts, offset, 0);
    if (n > 0) {
        off_t begin = offset < 0 ? lseek(fd, 0, SEEK_CUR) - n : offset;
        ssize_t left = n;
        for (int i = 0; i < parts && left > 0; i++) {
            struct iovec part = {data[i].iov_base, data[i].iov_len < (size_t)left ? data[i].iov_len : (size_t)left};
            record('w', about.st_ino, (uint64_t)begin, "", "", &part, 1);
            begin += (off_t)part.iov_len;
            left -= (ssize_t)part.iov_len;
        }
    }
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t write(int fd, const void *data, size_t n) {
    struct iovec one = {(void *)data, n};
    return written(fd, &one, 1, -1);
}
ssize_t writev(int fd, const struct iovec *data, int parts) { return written(fd, data, parts, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    struct iovec one = {(void *)data, n};
    return written(fd, &one, 1, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwrite(fd, data, n, at); }
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t at) { return written(fd, data, parts, at); }
ssize_t pwritev64(int fd, const struct iovec *data, int parts, off_t at) { return written(fd, data, parts, at); }

int ftruncate(int fd, off_t length) {
    struct stat about;
    if (!tracked(fd, &about)) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&lock);
    int code = (int)syscall(SYS_ftruncate, fd, length);
    if (!code) record('t', about.st_ino, (uint64_t)length, "", "", NULL, 0);
    pthread_mutex_unlock(&lock);
    return code;
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

/* A fast copy would not be seen. The callers fall back to reading and writing. */
ssize_t sendfile(int out, int in, off_t *offset, size_t n) {
    struct stat about;
    if (tracked(out, &about)) return errno = ENOTSOCK, -1;
    return syscall(SYS_sendfile, out, in, offset, n);
}
ssize_t sendfile64(int out, int in, off_t *offset, size_t n) { return sendfile(out, in, offset, n); }

static int synced(int fd, long call) {
    struct stat about;
    char space[2 * PATH_MAX];
    if (!tracked(fd, &about)) return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    /* Nothing has to reach the disk of this machine: the harness knows what was synced. */
    const char *without = getenv("UNSYNCED_WITHOUT");
    if (without && strchr(without, S_ISDIR(about.st_mode) ? 'd' : 'f')) {
        /* As in a program that lacks this sync: for tests of the tests. */
    } else if (S_ISDIR(about.st_mode)) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, space, PATH_MAX - 1);
        space[n < 0 ? 0 : n] = 0;
        record('d', about.st_ino, 0, space, "", NULL, 0);
    } else {
        record('f', about.st_ino, 0, "", "", NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

#define NAMED(kind, at, to, call) \
    char one[2 * PATH_MAX], two[2 * PATH_MAX]; \
    const char *first = full at, *second = full to; \
    (void)one, (void)two; \
    if (!below(first) && !below(second)) return (int)(call); \
    pthread_mutex_lock(&lock); \
    int code = (int)(call); \
    if (!code) name(kind, first, second); \
    pthread_mutex_unlock(&lock); \
    return code;

int rename(const char *a, const char *b) {
    NAMED('r', (AT_FDCWD, a, one), (AT_FDCWD, b, two), syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0))
}
int renameat(int da, const char *a, int db, const char *b) {
    NAMED('r', (da, a, one), (db, b, two), syscall(SYS_renameat2, da, a, db, b, 0))
}
int link(const char *a, const char *b) {
    NAMED('l', (AT_FDCWD, a, one), (AT_FDCWD, b, two), syscall(SYS_linkat, AT_FDCWD, a, AT_FDCWD, b, 0))
}
int linkat(int da, const char *a, int db, const char *b, int flags) {
    NAMED('l', (da, a, one), (db, b, two), syscall(SYS_linkat, da, a, db, b, flags))
}
int unlink(const char *a) { NAMED('u', (AT_FDCWD, a, one), (0, NULL, two), syscall(SYS_unlinkat, AT_FDCWD, a, 0)) }
int unlinkat(int da, const char *a, int flags) { NAMED('u', (da, a, one), (0, NULL, two), syscall(SYS_unlinkat, da, a, flags)) }
int rmdir(const char *a) { NAMED('u', (AT_FDCWD, a, one), (0, NULL, two), syscall(SYS_unlinkat, AT_FDCWD, a, AT_REMOVEDIR)) }
int mkdir(const char *a, mode_t mode) {
    NAMED('m', (AT_FDCWD, a, one), (0, NULL, two), syscall(SYS_mkdirat, AT_FDCWD, a, mode))
}
int mkdirat(int da, const char *a, mode_t mode) { NAMED('m', (da, a, one), (0, NULL, two), syscall(SYS_mkdirat, da, a, mode)) }
