/* Errors, and calls of TVM's functions through its C interface. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

static _Thread_local char message[2048];
static _Thread_local int has_message;

int failed(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  has_message = 1;
  return -1;
}

void forget_failure(void) { has_message = 0; }
int has_failed(void) { return has_message; }
const char* subtune_error(void) { return message; }

TVMFFIAny integer(int64_t value) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

TVMFFIAny text(const char* value) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = value;
  return any;
}

void release(TVMFFIAny* value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
  memset(value, 0, sizeof(*value));
}

int call_function(TVMFFIObjectHandle function, const char* what, TVMFFIAny* arguments, int count, TVMFFIAny* result) {
  memset(result, 0, sizeof(*result));
  if (TVMFFIFunctionCall(function, arguments, count, result) == 0) return 0;
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == NULL) return failed("%s failed", what);
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((char*)raised + sizeof(TVMFFIObject));
  failed("%s failed: %.*s", what, (int)cell->message.size, cell->message.data);
  TVMFFIObjectDecRef(raised);
  return -1;
}

int call_global(const char* name, TVMFFIAny* arguments, int count, TVMFFIAny* result) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  memset(result, 0, sizeof(*result));
  if (TVMFFIFunctionGetGlobal(&key, &function) != 0 || function == NULL) {
    return failed("TVM's runtime has no function %s", name);
  }
  int status = call_function(function, name, arguments, count, result);
  TVMFFIObjectDecRef(function);
  return status;
}
