/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vcattn: low-bit attention for video diffusion transformers. The C ABI (C99).
 *
 *   O = softmax(scale * Q K^T) V        non-causal, per (batch, query head)
 *
 * Contract of every function here
 *   - Inputs are borrowed and never written. No exception crosses this border.
 *   - Thread safe: any function may run in any number of threads at once, provided that two calls
 *     running at the same time share neither a workspace, an output nor a group state.
 *   - Offsets are 64 bit. Strides are in elements.
 *   - A call that fails returns a status other than VCA_OK, has written no output (only
 *     VCA_ERR_OUT_OF_MEMORY may come after a part of it), and leaves a text in
 *     vca_last_error() that says what was wrong, what was given, what is allowed and what to do.
 *   - On a CUDA device (desc.device >= 0) a call puts its work on the given stream and returns: it
 *     allocates nothing, waits for nothing, may be captured into a graph, and leaves the current
 *     device as it was. All pointers are the device's; segments, rope and the structs themselves
 *     are host memory and may go away when the call returns (rope tables: when the work is done).
 *     What kv_lens, key_mask and the workspace hold is not checked there.
 *   - Structs that may grow start with `struct_size`; set it to sizeof(the struct) (or use
 *     vca_attn_desc_init), so that a newer library keeps working with an older caller. Zeroed
 *     fields mean "default". vca_tensor and vca_segment are fixed and have none.
 */
#ifndef VCA_VCA_H_
#define VCA_VCA_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define VCA_API
#else
#define VCA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ status */
typedef enum vca_status {
  VCA_OK = 0,
  VCA_ERR_INVALID_ARGUMENT = 1, /* a field or a combination of fields is not allowed */
  VCA_ERR_UNSUPPORTED = 2, /* allowed, but nothing in this build can run it; the text says why */
  VCA_ERR_NON_FINITE = 3, /* VCA_CHECK_FINITE found a NaN or Inf; the text names tensor and index */
  VCA_ERR_WORKSPACE = 4,  /* the workspace is missing, too small or holds another problem */
  VCA_ERR_OUT_OF_MEMORY = 5, /* host memory could not be had */
  VCA_ERR_STATE = 6,         /* a group state is damaged or belongs to another problem */
  VCA_ERR_INTERNAL = 7       /* a fault of the library: please report */
} vca_status;

/* ------------------------------------------------------------------- enums */
typedef enum vca_dtype { VCA_BF16 = 0, VCA_FP16 = 1, VCA_FP32 = 2 } vca_dtype;

/* Recipes: docs/numerics.md, section E. AUTO is vc8 on the CPU, sm_89, sm_90 and sm_100. On a
 * device it declines calls that are too short to gain anything (VCA_ERR_UNSUPPORTED;
 * vca_attn_explain says from which length it does not): use BF16 attention there, or name a recipe.
 * The environment variable VCATTN_AUTO=always keeps it from declining. */
typedef enum vca_recipe {
  VCA_RECIPE_AUTO = 0,
  VCA_RECIPE_EXACT = 1,      /* FP64 throughout on the stored inputs */
  VCA_RECIPE_BF16 = 2,       /* BF16 QK and V, FP32 P */
  VCA_RECIPE_FP8 = 3,        /* naive E4M3, one Q and one K scale per head */
  VCA_RECIPE_SAGE2 = 4,      /* INT8 QK with K mean, exp2 + cast, E4M3 V per channel */
  VCA_RECIPE_VC8_PAPER = 5,  /* the published VC-Attention, 8 bit */
  VCA_RECIPE_VC8_EXP = 6,    /* V-Smooth alone (real exponentials) */
  VCA_RECIPE_VC8 = 7,        /* the default: block-local ExpCast and V-Smooth */
  VCA_RECIPE_VC8_TURBO = 8,  /* ExpCast against the running row maximum: fastest */
  VCA_RECIPE_VC8_HQ = 9,     /* INT8 V and 8-bit unsigned P: most faithful */
  VCA_RECIPE_VC8_FP8QK = 10, /* vc8 with E4M3 QK (chips without fast INT8) */
  VCA_RECIPE_VC8_FP8QK_PAPER = 11,
  /* NVFP4 recipes: on the CPU only in this version */
  VCA_RECIPE_FP4 = 12,       /* naive NVFP4 for Q, K, P (one level) and V */
  VCA_RECIPE_SAGE3 = 13,     /* NVFP4 with Q and K means, two-level P */
  VCA_RECIPE_VC4_PAPER = 14, /* the published VC-Attention, 4 bit: sage3 with V-Smooth */
  VCA_RECIPE_VC4 = 15,       /* NVFP4, Q and K means, Hadamard, V-Smooth, micro-scale of three */
  VCA_RECIPE_VC4_INT8QK = 16 /* vc4 with INT8 QK: much more faithful */
} vca_recipe;

/* How keys and values are reordered before value blocks are formed: docs/grouping.md. */
typedef enum vca_grouping {
  VCA_GROUPING_DEFAULT = 0, /* the recipe's own */
  VCA_GROUPING_IDENTITY = 1,
  VCA_GROUPING_CUBES = 2, /* space-time cubes; needs `grid` */
  VCA_GROUPING_KDTREE = 3,
  VCA_GROUPING_VSMOOTH = 4,
  VCA_GROUPING_KMEANS = 5,
  VCA_GROUPING_BALANCED = 6, /* slow reference */
  VCA_GROUPING_AUTO = 7
} vca_grouping;

/* Whose block order and chip arithmetic to follow. AUTO: the device that the tensors live on. */
typedef enum vca_target {
  VCA_TARGET_AUTO = 0,
  VCA_TARGET_CPU = 1,
  VCA_TARGET_SM89 = 2,
  VCA_TARGET_SM90 = 3,
  VCA_TARGET_SM100 = 4,
  VCA_TARGET_SM103 = 5,
  VCA_TARGET_SM120 = 6
} vca_target;

typedef enum vca_segment_kind {
  VCA_SEGMENT_VIDEO = 0,
  VCA_SEGMENT_TEXT = 1,
  VCA_SEGMENT_PADDING = 2, /* as if masked: never attended to */
  VCA_SEGMENT_SEQUENCE = 3 /* one sequence of a ragged batch: its queries see its keys only */
} vca_segment_kind;

typedef enum vca_rope_convention {
  VCA_ROPE_NONE = 0,
  VCA_ROPE_INTERLEAVED = 1, /* rotates (x[2i], x[2i+1]): Wan2.2, HunyuanVideo-1.5, LongCat */
  VCA_ROPE_HALF = 2         /* rotates (x[i], x[i + rotated/2]): MiniMax-H3 */
} vca_rope_convention;

typedef enum vca_policy_after {
  VCA_AFTER_REFRESH_ON_DECAY = 0, /* regroup a head when its removed energy has decayed */
  VCA_AFTER_REUSE = 1,            /* keep the last order (the published form) */
  VCA_AFTER_IDENTITY = 2          /* token order */
} vca_policy_after;

/* desc.flags */
#define VCA_CHECK_FINITE 1u /* refuse NaN and Inf in q, k, v (one more read of the inputs) */

#define VCA_DEVICE_CPU (-1) /* otherwise a CUDA device ordinal */

/* ----------------------------------------------------------------- structs */

/* A borrowed 4-D view [B, H, S, D]. HND and NHD are strides: HND contiguous is {H*S*D, S*D, D, 1},
 * NHD contiguous is {S*H*D, D, H*D, 1}. Stride of D must be 1; the others are >= 0, and 0 (an
 * expanded view) is allowed for inputs. Any alignment of the element type works. */
typedef struct vca_tensor {
  void* data;        /* may be NULL only when the view has no element */
  int32_t dtype;     /* vca_dtype */
  int32_t reserved;  /* 0 */
  int64_t shape[4];  /* B, H, S, D, each >= 0 */
  int64_t stride[4]; /* elements */
} vca_tensor;

/* A range of tokens [begin, begin + len) along S, the same in every batch. */
typedef struct vca_segment {
  int64_t begin;
  int64_t len;
  int32_t kind; /* vca_segment_kind */
  int32_t reserved;
} vca_segment;

/* Rotary embedding applied inside the call, to queries and keys alike, so S_q == S_kv. Default:
 * none (the caller rotated). Either grid + theta + axis_dim (tables are expanded on the host in
 * FP64), or ready tables. */
typedef struct vca_rope {
  size_t struct_size;
  int32_t convention;  /* vca_rope_convention */
  int32_t axis_dim[3]; /* rotated dims of axes t, h, w: even, >= 0, sum <= head_dim (44/42/42 in
                          Wan2.2); the remaining dims pass unrotated */
  double theta;        /* base of the frequencies theta^(-2i/axis_dim), > 0 (10000) */
  int64_t grid[3];     /* T, H, W of the rotated tokens, w fastest */
  /* First rotated token; tokens outside [begin, begin + T*H*W) pass unrotated. */
  int64_t begin;
  const float* cos; /* optional tables [S][sum/2], FP32, instead of the grid; both or neither */
  const float* sin;
} vca_rope;

/* When values are regrouped, over the denoising steps. */
typedef struct vca_policy {
  size_t struct_size;
  int32_t steps;   /* denoising steps in all, >= 1 (0: 1) */
  int32_t window;  /* regroup during steps [0, window); 0: max(1, ceil(steps / 4)); -1: no window */
  int32_t refresh; /* steps between regroupings inside the window, >= 1 (0: 1) */
  /* vca_policy_after. Without a policy: REFRESH_ON_DECAY, and REUSE for the *-paper recipes. */
  int32_t after;
  float decay; /* regroup when f_g < decay * f_g at the last grouping, 0..1; 0: 0.9 */
  /* 1: a second call at the same step (the other guidance branch) keeps the order. */
  int32_t share_cfg;
} vca_policy;

typedef struct vca_attn_desc {
  size_t struct_size;
  /* Limits: B * H_q, B * H_kv, and for a ragged batch B * n_segments * H_q, at most 2^20; S_q and
   * S_kv below 2^31. */
  vca_tensor q; /* [B, H_q, S_q, D] BF16, FP16 or FP32; D in 1..128 */
  vca_tensor k; /* [B, H_kv, S_kv, D], H_q a multiple of H_kv, dtype of q */
  vca_tensor v; /* [B, H_kv, S_kv, D] */
  /* [B, H_q, S_q, D] output, any of the three dtypes, rounded to nearest even; beyond FP16's range
   * +-Inf. No two of its elements may share an address, and it must not overlap an input. */
  vca_tensor o;
  /* Optional output [B, H_q, S_q] FP32 contiguous: natural log of sum exp(scale * q.k) over valid
   * keys of the original K; -inf for an empty key set. */
  float* lse;
  /* Softmax scale, used when has_scale = 1, else 1/sqrt(D). Negative and 0 are allowed, a
   * magnitude above 2^112 is not. */
  double scale;
  int32_t has_scale;
  /* Where all pointers live: VCA_DEVICE_CPU or a CUDA ordinal. In this version CUDA means compute
   * capability 9.0, recipes vc8, vc8-turbo, vc8-paper, vc8-exp, sage2 and fp8, every grouping but
   * balanced, no block_mask and no VCA_CHECK_FINITE. */
  int32_t device;
  int32_t recipe;   /* vca_recipe */
  int32_t grouping; /* vca_grouping; recipes without V-Smooth always keep token order */
  int32_t hadamard; /* 0: the recipe's own; 1: rotate Q and K; -1: do not */
  int32_t target;   /* vca_target */
  uint32_t flags;   /* VCA_CHECK_FINITE */
  /* CPU threads; 0: the OpenMP default. At most 16, or the processors of a larger machine, are
   * used; no result depends on the number. */
  int32_t num_threads;
  /* Optional [B]: batch b attends to keys [0, kv_lens[b]), 0..S_kv. */
  const int32_t* kv_lens;
  /* Optional [B, S_kv] contiguous, 1 = attend, 0 = do not; combined with kv_lens. */
  const uint8_t* key_mask;
  /* Optional, in order, disjoint, covering [0, S_kv); NULL: one video segment. Groups never mix
   * segments. SEQUENCE segments need S_q == S_kv and no VIDEO or TEXT beside them. */
  const vca_segment* segments;
  int64_t n_segments;
  int64_t grid[3];          /* optional T, H, W of the video segment's tokens (cubes); 0: unknown */
  const vca_rope* rope;     /* optional */
  const vca_policy* policy; /* optional; needs `state` and `step` */
  /* Optional group state of vca_group_state_bytes() bytes, 8-byte aligned; on a device in its
   * memory, 256-byte aligned. Needs `step`. A device state that was not initialised for this
   * descriptor is neither used nor written: every call forms a new order. */
  void* state;
  /* The denoising step, >= 0, an int32 that lives where the tensors live; needs `state`. */
  const int32_t* step;
  /* Optional [B, H_q, ceil(S_q/128), ceil(S_kv/128)] contiguous, 1 = attend, 0 = do not: query s
   * sees key t only where element [b, h, s / 128, t / 128] is 1. Blocks are of tokens as given,
   * whatever the grouping; combined with key_mask and kv_lens. A query that sees no key has O = 0.
   * Read by attend (and run), not by prepare. CPU only in this version. */
  const uint8_t* block_mask;
  /* Optional output [B, H_kv] FP32: f, the share of V's energy that the block means take out; NaN
   * where undefined (no V-Smooth, V = 0). Ragged batches: the mean over the sequences, weighted by
   * their tokens. */
  float* energy_removed;
  uint8_t* regrouped; /* optional output [B, H_kv]: 1 where this call formed a new order */
} vca_attn_desc;

/* A descriptor with every field at its default, on the CPU. A function and not an initialiser
 * macro: {sizeof(...)} alone would warn about missing initialisers in callers that compile with
 * -Wextra. */
static inline vca_attn_desc vca_attn_desc_init(void) {
  vca_attn_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.device = VCA_DEVICE_CPU;
  return desc;
}

/* What would run. The texts are static. On the CPU the environment variable VCATTN_CPU_ISA
 * (portable, avx2, avx512) forces an instruction set. */
typedef struct vca_attn_info {
  size_t struct_size;
  int32_t recipe;        /* resolved, never AUTO */
  int32_t grouping;      /* resolved, never DEFAULT */
  int32_t target;        /* resolved */
  int32_t hadamard;      /* 0 or 1 */
  const char* kernel;    /* for example "cpu/avx512" */
  const char* schedule;  /* L2: block order and order of sums */
  const char* mma_model; /* L3: chip arithmetic */
  const char* evidence;  /* "specification", "emulated", "measured", ... */
  size_t workspace_bytes;
  size_t state_bytes;
} vca_attn_info;

/* Outputs and injections of vca_ref_attn; any pointer may be NULL. n_cols = 128 * n_blocks, in
 * gathered order; pads of tail blocks are included (their codes count nowhere). */
typedef struct vca_ref_io {
  size_t struct_size;
  /* in: [n_valid] order of the valid tokens, segment by segment; NULL: the grouping */
  const int64_t* permutation;
  /* in: [nrows, n_cols] codes of P used instead of the recipe's own */
  const uint8_t* codes_in;
  /* in: [nrows, n_blocks] block sums that belong to codes_in; NULL: decoded from them */
  const float* sums_in;
  int64_t* order;  /* out: [n_cols] token of each column, -1 for pads */
  int32_t* s;      /* out: [nrows, n_cols] integer scores; FP32 bits for E4M3 and BF16 QK */
  float* m;        /* out: [nrows, n_blocks] reference of the block's codes, code units */
  uint8_t* codes;  /* out: [nrows, n_cols] */
  float* r;        /* out: [nrows, n_blocks] sums of P by block, before weighting */
  float* o;        /* out: [nrows, D] FP32, before rounding to the output dtype */
  float* lse;      /* out: [nrows] */
  double* o_exact; /* out: [nrows, D] FP64 attention on the stored inputs */
} vca_ref_io;

/* --------------------------------------------------------------- functions */
VCA_API const char* vca_version(void);  /* "0.1.0" */
VCA_API int32_t vca_spec_version(void); /* version of docs/numerics.md; goldens carry it */
VCA_API const char* vca_status_str(vca_status status);
VCA_API const char* vca_last_error(void); /* of this thread's last failed call; "" if none */

VCA_API const char* vca_recipe_str(int32_t recipe); /* "vc8"; NULL when unknown */
VCA_API const char* vca_grouping_str(int32_t grouping);
VCA_API const char* vca_target_str(int32_t target);
/* Names as the command line takes them ("vc8", "vc8+had"): sets recipe and, for "+had", hadamard
 * = 1. */
VCA_API vca_status vca_recipe_parse(const char* name, int32_t* recipe, int32_t* hadamard);
VCA_API vca_status vca_grouping_parse(const char* name, int32_t* grouping);
VCA_API vca_status vca_target_parse(const char* name, int32_t* target);

/* Validates the descriptor and says what would run; VCA_ERR_UNSUPPORTED with the reason when
 * nothing can. */
VCA_API vca_status vca_attn_query(const vca_attn_desc* desc, vca_attn_info* info);
/* Writes one line per candidate ("cpu/avx512: chosen", "sm90: refused: ...") into buf (always
 * terminated); *needed is the full length with the terminator. */
VCA_API vca_status vca_attn_explain(const vca_attn_desc* desc, char* buf, size_t size,
                                    size_t* needed);
/* Bytes of workspace, 64-byte aligned (256 on a device), for prepare/attend/run. Needs no tensor
 * data. Linear in S. Formula: docs/architecture.md. */
VCA_API vca_status vca_attn_workspace(const vca_attn_desc* desc, size_t* bytes);
/* Quantises q, k and v into the workspace. Afterwards the caller may free q, k and v. */
VCA_API vca_status vca_attn_prepare(const vca_attn_desc* desc, void* workspace, size_t bytes,
                                    void* stream);
/* Attention on a prepared workspace: reads desc.o, desc.lse and shapes only, never q, k, v data. On
 * a device it trusts that prepare saw the same descriptor. */
VCA_API vca_status vca_attn_attend(const vca_attn_desc* desc, void* workspace, size_t bytes,
                                   void* stream);
/* prepare + attend. workspace NULL with bytes 0 is allowed on the CPU: the library then takes host
 * memory for the time of the call. `stream`: a cudaStream_t of desc.device (NULL: its legacy
 * default stream); NULL on the CPU. */
VCA_API vca_status vca_attn_run(const vca_attn_desc* desc, void* workspace, size_t bytes,
                                void* stream);

/* The specification itself for query rows [row0, row0 + nrows) of (batch b, query head h), on the
 * CPU, with the block order and chip arithmetic of `target`. A suspicious result of any backend can
 * be compared bit for bit. */
VCA_API vca_status vca_ref_attn(const vca_attn_desc* desc, int32_t target, int64_t b, int64_t h,
                                int64_t row0, int64_t nrows, vca_ref_io* io);
/* Sizes of vca_ref_io's buffers for batch b: n_valid keys in n_blocks of 128. With SEQUENCE
 * segments those of the largest sequence; rows of a smaller one are padded to it (order -1,
 * everything else 0). */
VCA_API vca_status vca_ref_blocks(const vca_attn_desc* desc, int64_t b, int64_t* n_valid,
                                  int64_t* n_blocks);

/* Group state: one buffer per attention layer (and guidance branch, unless share_cfg), owned by the
 * caller, where the tensors are: in host memory, 8-byte aligned, or in a device's, 256-byte
 * aligned. VCA_ERR_STATE: NULL, misaligned, too few bytes, or (in host memory, which is read) no
 * state of this version. VCA_ERR_INVALID_ARGUMENT: a state or blob that the CPU would have to read
 * or write lies in memory of a device, or in memory that CUDA manages. */
VCA_API vca_status vca_group_state_bytes(const vca_attn_desc* desc, size_t* bytes);
/* Makes the buffer an empty state for desc. `state` lies where desc.device says. */
VCA_API vca_status vca_group_state_init(const vca_attn_desc* desc, void* state, size_t bytes,
                                        void* stream);
/* A new generation begins: nothing is kept. The memory of `state` says whose it is; on a device,
 * which is not waited for, `bytes` must hold the header (256), and one that holds no state, or a
 * longer one than `bytes`, is left alone. */
VCA_API vca_status vca_group_state_reset(void* state, size_t bytes, void* stream);
/* A portable copy (versioned, little endian, checksummed) of a state in host memory. Size query:
 * blob NULL. A state that was made for CUDA tensors has no such copy in this version, wherever its
 * bytes are. state and blob: host memory. VCA_ERR_INVALID_ARGUMENT also where *blob_bytes is too
 * small. */
VCA_API vca_status vca_group_state_save(const void* state, size_t bytes, void* blob,
                                        size_t* blob_bytes);
/* Makes the buffer the saved state, which must be of desc's shapes, segments and grouping, else
 * VCA_ERR_STATE and the buffer is as it was. desc.device: VCA_DEVICE_CPU, else
 * VCA_ERR_UNSUPPORTED. state and blob: host memory. */
VCA_API vca_status vca_group_state_load(const vca_attn_desc* desc, void* state, size_t bytes,
                                        const void* blob, size_t blob_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* VCA_VCA_H_ */
