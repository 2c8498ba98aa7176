/* The programs of gpuhook's bundle that are called by their paths. Which one this is, and what it lies below, says the
 * kernel's name for the running file, so that a link or any argv[0] will do; the environment is passed on unread.
 *
 *   usr/bin/gpuhook, usr/bin/gpuhook-hook   the bundle's Python with the launcher of that name
 *   usr/bin/gpuhook-runtime                 /bin/sh, or else the bundle's busybox, with the launcher of that name
 *   usr/lib/gpuhook/python/bin/python3      the bundle's Python: its interpreter, started by the loader beside it
 *
 * Built by packaging/bundle/build, static, with VERSION, LOADER and INTERPRETER: it runs where there is no C library.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "/usr/lib/gpuhook/" VERSION
#define PYTHON "/usr/lib/gpuhook/python"
#define RUNTIME "/usr/bin/gpuhook-runtime"
#define STATUS 15 /* in docs/errors.md */

static const char *const names[] = {"/usr/bin/gpuhook", "/usr/bin/gpuhook-hook", RUNTIME, PYTHON "/bin/python3"};
static char self[PATH_MAX], prefix[PATH_MAX];

static int fail(const char *path, int error) {
  dprintf(2, "gpuhook: %s can't be run: %s; unpack the bundle again [installation-damaged]\n", path, strerror(error));
  return STATUS;
}

/* Below the prefix. Each length is bounded by PATH_MAX; a longer path is one that exec refuses. */
static char *below(char *to, const char *path) {
  snprintf(to, PATH_MAX, "%s%s", prefix, path);
  return to;
}

int main(int count, char **given) {
  static char loader[PATH_MAX], library[PATH_MAX], python[PATH_MAX], interpreter[PATH_MAX], script[PATH_MAX];
  static char shell[PATH_MAX];
  static const char deleted[] = " (deleted)"; /* an update replaced the file since it was started */
  char *run[count + 9]; /* the kernel lets arguments take a quarter of the stack at most */
  char *name = NULL;
  int used = 0;

  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) return fail("/proc/self/exe", errno);
  size_t cut = sizeof deleted - 1;
  if ((size_t)length > cut && !strcmp(self + length - cut, deleted)) self[length -= cut] = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    size_t ends = strlen(names[i]);
    if ((size_t)length >= ends && !strcmp(self + length - ends, names[i])) {
      name = strrchr(self, '/') + 1;
      memcpy(prefix, self, length - ends);
    }
  }
  if (!name || count < 1) return fail(self, EINVAL); /* a copy at another place; no argv[0] at all */

  below(script, LIBRARY "/bin/");
  strncat(script, name, sizeof script - strlen(script) - 1);
  if (!strcmp(name, "gpuhook-runtime")) {
    run[used++] = "/bin/sh";
    run[used++] = script;
    memcpy(run + used, given + 1, count * sizeof *run); /* with the NULL at the end */
    execv(run[0], run);
    run[0] = "sh"; /* busybox goes by it */
    execv(below(shell, PYTHON "/bin/busybox"), run);
    return fail(shell, errno);
  }
  run[used++] = below(loader, PYTHON "/lib/" LOADER);
  run[used++] = "--library-path";
  run[used++] = below(library, PYTHON "/lib");
  run[used++] = "--argv0";
  run[used++] = below(python, PYTHON "/bin/python3"); /* Python finds its library, and itself, by this name */
  run[used++] = below(interpreter, PYTHON "/bin/" INTERPRETER);
  if (strcmp(name, "python3")) {
    run[used++] = "-ISB";
    run[used++] = script;
  }
  memcpy(run + used, given + 1, count * sizeof *run);
  if (access(interpreter, X_OK)) return fail(interpreter, errno); /* the loader has other words for it */
  execv(loader, run);
  return fail(loader, errno);
}
