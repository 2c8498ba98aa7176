/* Shared by the programs and libraries of the simulated driver.
 *
 * They must run in containers with an older C library than the one they were built with, so they ask for the oldest
 * symbol version of the machine: no start files of the C library, no fstat, no strtol or scanf (their names changed in
 * glibc 2.38), and dlopen, dlsym and dladdr by the version that they had when they still lived in libdl (up to 2.33).
 */
#ifndef GPUHOOK_SIM_BASE_H
#define GPUHOOK_SIM_BASE_H

#define EXPORT __attribute__((visibility("default")))

#if defined(__x86_64__)
#define BASE_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define BASE_VERSION "GLIBC_2.17"
#else
#error "the simulated driver is made for x86-64 and aarch64"
#endif

#define OLD(name) __asm__(".symver " #name "," #name "@" BASE_VERSION)

/* The entry point of a program: start(argv), whose result is the exit status. */
#if defined(__x86_64__)
#define START(start)                                                                                                  \
    __asm__(".text\n.globl _start\n.type _start,@function\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n"                 \
            " add $8,%rdi\n and $-16,%rsp\n call begin\n hlt\n");                                                     \
    __attribute__((used, visibility("hidden"))) void begin(char **argv) { exit(start(argv)); }
#else
#define START(start)                                                                                                  \
    __asm__(".text\n.globl _start\n.type _start,%function\n_start:\n mov x29,#0\n mov x30,#0\n mov x0,sp\n"           \
            " add x0,x0,#8\n bl begin\n brk #0\n");                                                                   \
    __attribute__((used, visibility("hidden"))) void begin(char **argv) { exit(start(argv)); }
#endif

#endif
