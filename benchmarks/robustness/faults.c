/* A disk that fails, or a process that is killed, at one chosen step. Preloaded (LD_PRELOAD) into the program, it stands
 * before the functions of the C library that change a file system, and counts their calls:
 *
 *   FAULT_AT=n     the n-th call is the one, from 1 on; a write counts only where it goes to a regular file
 *   FAULT_BYTE=n   instead: the disk takes n bytes, and no more
 *   FAULT_AS=e     what it comes to: the error number e; 0: killed before the call; -1: stopped before it
 *   FAULT_STAYS=1  all later calls fail as well
 *   FAULT_ONLY=f   only calls of this function count
 *   FAULT_TOLD=p   the name of the function is appended to this file when it happens
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long number(const char *name, long other) {
    const char *text = getenv(name);
    return text ? atol(text) : other;
}

static void tell(const char *name) {
    const char *path = getenv("FAULT_TOLD");
    long fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0)
        return;
    syscall(SYS_write, fd, name, strlen(name));
    syscall(SYS_write, fd, "\n", 1);
    syscall(SYS_close, fd);
}

/* What is to happen happens; whether the call is to fail, with `errno` set. */
static int struck(const char *name) {
    long as = number("FAULT_AS", 0);
    tell(name);
    if (as <= 0)
        syscall(SYS_kill, syscall(SYS_getpid), as == 0 ? SIGKILL : SIGSTOP);
    errno = (int)as;
    return as > 0;
}

static int fails(const char *name) {
    static long calls;
    const char *only = getenv("FAULT_ONLY");
    long at = number("FAULT_AT", 0);
    if (at == 0 || (only && strcmp(only, name) != 0))
        return 0;
    calls++;
    if (calls == at || (calls > at && number("FAULT_STAYS", 0)))
        return struck(name);
    return 0;
}

static int regular(int fd) {
    struct stat about;
    return fd > 2 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    static size_t written;
    long most = number("FAULT_BYTE", -1);
    if (!regular(fd))
        return syscall(SYS_write, fd, data, size);
    if (fails("write"))
        return -1;
    if (most >= 0) {
        size_t left = written < (size_t)most ? (size_t)most - written : 0;
        if (size > left && left == 0 && struck("write"))
            return -1;
        if (size > left)
            size = left;
        written += size;
    }
    return syscall(SYS_write, fd, data, size);
}

#define OPENED(name, call)                                                                                             \
    do {                                                                                                               \
        va_list more;                                                                                                  \
        mode_t mode;                                                                                                   \
        va_start(more, flags);                                                                                         \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                               \
        va_end(more);                                                                                                  \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT) && fails("open"))                                                    \
            return -1;                                                                                                 \
        return (int)(call);                                                                                            \
    } while (0)

int open(const char *path, int flags, ...) { OPENED(open, syscall(SYS_openat, AT_FDCWD, path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPENED(open64, syscall(SYS_openat, AT_FDCWD, path, flags, mode)); }
int openat(int at, const char *path, int flags, ...) { OPENED(openat, syscall(SYS_openat, at, path, flags, mode)); }
int openat64(int at, const char *path, int flags, ...) { OPENED(openat64, syscall(SYS_openat, at, path, flags, mode)); }

#define CALLED(type, name, shown, parameters, arguments)                                                               \
    type name parameters { return fails(shown) ? -1 : REAL(name) arguments; }

CALLED(int, mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
CALLED(int, mkdirat, "mkdir", (int at, const char *path, mode_t mode), (at, path, mode))
CALLED(int, rmdir, "rmdir", (const char *path), (path))
CALLED(int, rename, "rename", (const char *from, const char *to), (from, to))
CALLED(int, renameat, "rename", (int a, const char *from, int b, const char *to), (a, from, b, to))
CALLED(int, link, "link", (const char *from, const char *to), (from, to))
CALLED(int, linkat, "link", (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
CALLED(int, symlink, "symlink", (const char *from, const char *to), (from, to))
CALLED(int, unlink, "unlink", (const char *path), (path))
CALLED(int, unlinkat, "unlink", (int at, const char *path, int flags), (at, path, flags))
CALLED(int, fsync, "fsync", (int fd), (fd))
CALLED(int, fdatasync, "fsync", (int fd), (fd))
CALLED(int, ftruncate, "truncate", (int fd, off_t size), (fd, size))
CALLED(int, ftruncate64, "truncate", (int fd, off64_t size), (fd, size))
CALLED(int, fchmod, "chmod", (int fd, mode_t mode), (fd, mode))
CALLED(int, chmod, "chmod", (const char *path, mode_t mode), (path, mode))
CALLED(int, fchown, "chown", (int fd, uid_t user, gid_t group), (fd, user, group))
CALLED(int, flock, "lock", (int fd, int how), (fd, how))
