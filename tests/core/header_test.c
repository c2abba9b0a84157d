/* SPDX-License-Identifier: Apache-2.0 */
/* vca.h is C99, its structs have the layout that ctypes and other languages rely on, and a C
 * program can run the ten lines of the README. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vca/vca.h"

static int failures = 0;

static void check(int ok, const char* what) {
  if (!ok) {
    ++failures;
    fprintf(stderr, "FAILED: %s (%s)\n", what, vca_last_error());
  }
}

static void check_number(size_t got, size_t want, const char* what) {
  if (got != want) {
    ++failures;
    fprintf(stderr, "FAILED: %s is %zu, not %zu\n", what, got, want);
  }
}

#define OFFSET(type, field, want) check_number(offsetof(type, field), want, #type "." #field)
#define SIZE(type, want) check_number(sizeof(type), want, "sizeof(" #type ")")

static void layout(void) {
  SIZE(vca_tensor, 80);
  OFFSET(vca_tensor, dtype, 8);
  OFFSET(vca_tensor, shape, 16);
  OFFSET(vca_tensor, stride, 48);
  SIZE(vca_segment, 24);
  SIZE(vca_rope, 80);
  OFFSET(vca_rope, theta, 24);
  OFFSET(vca_rope, grid, 32);
  OFFSET(vca_rope, cos, 64);
  SIZE(vca_policy, 32);
  OFFSET(vca_policy, decay, 24);
  OFFSET(vca_attn_desc, q, 8);
  OFFSET(vca_attn_desc, o, 248);
  OFFSET(vca_attn_desc, lse, 328);
  OFFSET(vca_attn_desc, scale, 336);
  OFFSET(vca_attn_desc, has_scale, 344);
  OFFSET(vca_attn_desc, device, 348);
  OFFSET(vca_attn_desc, kv_lens, 376);
  OFFSET(vca_attn_desc, regrouped, 480);
  SIZE(vca_attn_desc, 488);
  SIZE(vca_attn_info, 72);
  SIZE(vca_ref_io, 96);
}

/* One attention call on constant values: the output is that constant. */
static void run(void) {
  enum { S = 150, D = 32 };
  static float q[S * D], k[S * D], v[S * D], o[S * D];
  vca_attn_desc desc = vca_attn_desc_init();
  vca_tensor t;
  int i;
  for (i = 0; i < S * D; ++i) {
    q[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    k[i] = (float)(i * 53 % 97) / 48.0f - 1.0f;
    v[i] = 2.0f;
    o[i] = -1.0f;
  }
  memset(&t, 0, sizeof t);
  t.dtype = VCA_FP32;
  t.shape[0] = 1, t.shape[1] = 1, t.shape[2] = S, t.shape[3] = D;
  t.stride[0] = S * D, t.stride[1] = S * D, t.stride[2] = D, t.stride[3] = 1;
  desc.q = t, desc.k = t, desc.v = t, desc.o = t;
  desc.q.data = q, desc.k.data = k, desc.v.data = v, desc.o.data = o;
  check(vca_attn_run(&desc, NULL, 0, NULL) == VCA_OK, "vca_attn_run");
  /* Constant values come back to an output rounding each for l and O: docs/numerics.md F5. */
  for (i = 0; i < S * D; ++i)
    if (o[i] - 2.0f > 1e-5f || o[i] - 2.0f < -1e-5f) break;
  check(i == S * D, "a constant V comes back");
  desc.q.shape[3] = 200;
  check(vca_attn_run(&desc, NULL, 0, NULL) == VCA_ERR_INVALID_ARGUMENT, "head_dim 200 is refused");
  check(strstr(vca_last_error(), "head_dim") != NULL, "the message names head_dim");
}

int main(void) {
  layout();
  check(strcmp(vca_version(), VCA_TEST_VERSION) == 0, "vca_version");
  check(vca_spec_version() >= 1, "vca_spec_version");
  check(strcmp(vca_status_str(VCA_OK), "ok") == 0, "vca_status_str");
  run();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
