/* Preloaded into a Python program: system calls on files below one directory, and SQLite's requests for memory, fail.

   fail_calls(below, percent, number, seed, memory) sets what fails; percent 0 ends it. `failed_calls` counts.        */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <dirent.h>

static char under[4096];
static int chance, number, memory;
static unsigned long state;
static char inside[65536];
static char *sqlite_begin, *sqlite_end;
long failed_calls;

static int find_sqlite(struct dl_phdr_info *info, size_t size, void *unused) {
    if (strstr(info->dlpi_name, "sqlite3") == NULL) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        sqlite_begin = (char *)info->dlpi_addr + part->p_vaddr;
        sqlite_end = sqlite_begin + part->p_memsz;
    }
    /* Debian's module `_sqlite3` uses libsqlite3; others have it inside. The library is the better answer. */
    return strstr(info->dlpi_name, "libsqlite3") != NULL;
}

void fail_calls(const char *below, int percent, int error, unsigned long seed, int of_memory) {
    chance = 0;
    strncpy(under, below, sizeof under - 1);
    number = error;
    memory = of_memory;
    state = seed * 2654435761u + 88172645463325252u;
    failed_calls = 0;
    if (of_memory) dl_iterate_phdr(find_sqlite, NULL);
    chance = percent;
}

static int unlucky(void) {
    if (chance == 0) return 0;
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    if ((int)(state % 100) >= chance) return 0;
    failed_calls++;
    errno = number;
    return 1;
}

static int is_inside(int fd) { return fd >= 0 && fd < (int)sizeof inside && inside[fd]; }
static int is_under(int at, const char *path) {
    if (under[0] == 0 || path == NULL) return 0;
    return path[0] == '/' ? strncmp(path, under, strlen(under)) == 0 : is_inside(at);
}
static int opened(int fd, int at, const char *path) {
    if (fd >= 0 && fd < (int)sizeof inside) inside[fd] = is_under(at, path);
    return fd;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); \
    mode = va_arg(more, mode_t); va_end(more); }
#define OPEN(name) int name(const char *path, int flags, ...) { MODE(flags); REAL(int, name, const char *, int, ...); \
    if (is_under(AT_FDCWD, path) && unlucky()) return -1; return opened(real(path, flags, mode), AT_FDCWD, path); }
OPEN(open) OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { MODE(flags); \
    REAL(int, name, int, const char *, int, ...); \
    if (is_under(at, path) && unlucky()) return -1; return opened(real(at, path, flags, mode), at, path); }
OPENAT(openat) OPENAT(openat64)
int close(int fd) { REAL(int, close, int); if (fd >= 0 && fd < (int)sizeof inside) inside[fd] = 0; return real(fd); }

#define PATH1(type, bad, name) type name(const char *path) { REAL(type, name, const char *); \
    if (is_under(AT_FDCWD, path) && unlucky()) return bad; return real(path); }
PATH1(int, -1, unlink) PATH1(int, -1, rmdir) PATH1(DIR *, NULL, opendir)
#define PATH2(name, kind) int name(const char *path, kind second) { REAL(int, name, const char *, kind); \
    if (is_under(AT_FDCWD, path) && unlucky()) return -1; return real(path, second); }
PATH2(rename, const char *) PATH2(link, const char *) PATH2(mkdir, mode_t) PATH2(chmod, mode_t) PATH2(access, int)
PATH2(stat, struct stat *) PATH2(lstat, struct stat *) PATH2(stat64, struct stat64 *) PATH2(lstat64, struct stat64 *)
#define STATAT(name, kind) int name(int at, const char *path, kind *about, int flags) { \
    REAL(int, name, int, const char *, kind *, int); \
    if (is_under(at, path) && unlucky()) return -1; return real(at, path, about, flags); }
STATAT(fstatat, struct stat) STATAT(fstatat64, struct stat64)
#define FD1(name) int name(int fd) { REAL(int, name, int); if (is_inside(fd) && unlucky()) return -1; return real(fd); }
FD1(fsync) FD1(fdatasync)
#define FD2(name, kind) int name(int fd, kind second) { REAL(int, name, int, kind); \
    if (is_inside(fd) && unlucky()) return -1; return real(fd, second); }
FD2(fstat, struct stat *) FD2(fstat64, struct stat64 *) FD2(ftruncate, off_t) FD2(ftruncate64, off64_t)
FD2(fchmod, mode_t) FD2(flock, int)
#define READ(name, kind) ssize_t name(int fd, kind *data, size_t size) { REAL(ssize_t, name, int, kind *, size_t); \
    if (is_inside(fd) && unlucky()) return -1; return real(fd, data, size); }
READ(read, void) READ(write, const void)
#define PREAD(name, kind, place) ssize_t name(int fd, kind *data, size_t size, place at) { \
    REAL(ssize_t, name, int, kind *, size_t, place); \
    if (is_inside(fd) && unlucky()) return -1; return real(fd, data, size, at); }
PREAD(pread, void, off_t) PREAD(pread64, void, off64_t) PREAD(pwrite, const void, off_t) PREAD(pwrite64, const void, off64_t)
#define MMAP(name, place) void *name(void *at, size_t size, int how, int flags, int fd, place from) { \
    REAL(void *, name, void *, size_t, int, int, int, place); \
    if (is_inside(fd) && unlucky()) return MAP_FAILED; return real(at, size, how, flags, fd, from); }
MMAP(mmap, off_t) MMAP(mmap64, off64_t)

static int of_sqlite(char *caller) { return memory && caller >= sqlite_begin && caller < sqlite_end && unlucky(); }
extern void *__libc_malloc(size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t size) { return of_sqlite(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *realloc(void *old, size_t size) { return of_sqlite(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size); }
