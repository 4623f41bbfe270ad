/* Whether this processor has the instructions that a model uses: a sentence instead of a signal. Linux only. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

/* Letters and digits of a name alone: LLVM writes sse4.2 and amx-int8 where Linux has sse4_2 and amx_int8. */
static void simplify(char* name) {
  char* to = name;
  for (; *name; ++name) {
    if (isalnum((unsigned char)*name)) *to++ = *name;
  }
  *to = 0;
}

static const char* as_llvm(const char* flag) {
  static const char* const arm[][2] = {
      {"asimd", "neon"}, {"asimddp", "dotprod"}, {"asimdhp", "fullfp16"}, {"fp", "fparmv8"}};
  for (size_t i = 0; i < sizeof(arm) / sizeof(arm[0]); ++i) {
    if (strcmp(flag, arm[i][0]) == 0) return arm[i][1];
  }
  return flag;
}

/* The first line of flags, "" where the system does not say. */
static char* read_flags(void) {
#if defined(__x86_64__)
  const char* key = "flags";
#else
  const char* key = "Features";
#endif
  FILE* file = fopen("/proc/cpuinfo", "r");
  char* line = NULL;
  size_t room = 0;
  int is_found = 0;
  while (file && !is_found && getline(&line, &room, file) > 0) is_found = strncmp(line, key, strlen(key)) == 0;
  if (file) fclose(file);
  if (is_found) return line;
  free(line);
  return NULL;
}

int check_feature(const char* feature) {
  char* flags = read_flags();
  char* values = flags ? strchr(flags, ':') : NULL;
  char* wanted = strdup(feature);
  int is_there = values == NULL || wanted == NULL;
  if (wanted) simplify(wanted);
  char* rest = NULL;
  for (char* flag = values ? strtok_r(values + 1, " \t\n", &rest) : NULL; flag && !is_there;
       flag = strtok_r(NULL, " \t\n", &rest)) {
    char* known = strdup(as_llvm(flag));
    if (known) simplify(known);
    is_there = known == NULL || strcmp(known, wanted) == 0;
    free(known);
  }
  free(flags);
  free(wanted);
#if defined(__linux__) && defined(__x86_64__)
  /* A process has to ask for the tile registers, once: ARCH_REQ_XCOMP_PERM, tile data. */
  if (is_there && strncmp(feature, "amx-", 4) == 0) is_there = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#endif
  return is_there ? 0 : failed("the model uses %s, which this processor lacks: compile it on this machine", feature);
}
