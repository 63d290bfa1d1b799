/* Runs a uce-edge model file (docs/contract.md, version 2) from C99, and from whatever can call C: Rust, Swift, Go.
 *
 * A function that can fail returns 0 when it did not, and otherwise says why in `error`, which may be NULL. Nothing is
 * thrown. A struct that is all zero bytes asks for what is usual. A model may answer several threads at a time. */

#ifndef UCE_EDGE_H
#define UCE_EDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns. */
enum { UCE_EDGE_OK = 0, UCE_EDGE_FAILED = 1, UCE_EDGE_USAGE = 2 /* the request itself is wrong */ };

/* What the rule of the file decides about an image. */
enum { UCE_EDGE_ACCEPT = 0, UCE_EDGE_UNCERTAIN = 1, UCE_EDGE_OUT_OF_DISTRIBUTION = 2, UCE_EDGE_BOTH = 3 };

/* What went wrong, in one sentence of UTF-8; a longer one is cut. */
typedef struct uce_edge_error {
  char text[1024];
} uce_edge_error;

/* The sentence, for languages that have no arrays in structs. */
const char *uce_edge_message(const uce_edge_error *error);

/* Of ONNX Runtime's C interface; only who sets options of a session needs its header. */
struct OrtApi;
struct OrtSessionOptions;
struct OrtStatus;

/* How a model is run. */
typedef struct uce_edge_options {
  int32_t threads;      /* of ONNX Runtime; 0 for all cores */
  int32_t no_arena;     /* 1 gives memory back after every call */
  int32_t max_memory;   /* megabytes that the values of one call may take, about; 0 for 256 */
  const char *provider; /* NULL for "cpu"; "cuda", or a name that ONNX Runtime knows; never another in silence */
  /* Called last, to set what is not named here; returns what a call of ONNX Runtime returned, NULL for success. */
  struct OrtStatus *(*configure)(const struct OrtApi *api, struct OrtSessionOptions *options, void *data);
  void *data;           /* what `configure` is given */
} uce_edge_options;

/* A model, ready to predict. */
typedef struct uce_edge_model uce_edge_model;

/* Load a file; `options` may be NULL. */
int uce_edge_load(const char *path, const uce_edge_options *options, uce_edge_model **model, uce_edge_error *error);

/* Load the bytes of a file, which may be let go of afterwards; `name` is what messages call them. */
int uce_edge_load_bytes(const void *bytes, size_t size, const char *name, const uce_edge_options *options,
                        uce_edge_model **model, uce_edge_error *error);

void uce_edge_free(uce_edge_model *model);

/* What a file says of itself. */
typedef struct uce_edge_info {
  int32_t classes, height, width, channels;
  int32_t is_float32;    /* pixels are float32 rather than uint8 */
  int32_t samples;       /* the number of passes that the file itself takes */
  int32_t calibrated_at; /* the number that its calibration was fitted at; 0 where nobody knows */
  int32_t has_novelty;   /* it detects out-of-distribution images */
  int32_t has_rule;      /* it stores a reject rule, which `decision` applies */
  size_t image_bytes;    /* of one image without gaps */
} uce_edge_info;

void uce_edge_describe(const uce_edge_model *model, uce_edge_info *info);

/* The name of a class in UTF-8, which lives as long as the model; NULL for a number that is none. */
const char *uce_edge_class_name(const uce_edge_model *model, int32_t class_id);

/* Pixels, read where they lie: height x width x channels, rows from the top, channels last, not normalised. They are
 * copied only where rows have gaps, or where several images do not follow each other in memory. */
typedef struct uce_edge_image {
  const void *pixels;
  ptrdiff_t stride; /* bytes from one row to the next, negative for rows from below; 0 for rows without a gap */
} uce_edge_image;

/* An 8-bit image of any size: rows from the top, channels last. */
typedef struct uce_edge_frame {
  const uint8_t *pixels;
  int32_t width, height;
  int32_t channels; /* 1 for gray, 3 for RGB; a model of the other kind gets it converted */
  ptrdiff_t stride; /* as of uce_edge_image */
} uce_edge_frame;

/* Resize a frame as the file asks, with the same bytes as in Python. `pixels` has room for the `image_bytes` of
 * uce_edge_info; several frames may be prepared one after the other in memory, to be read there. */
int uce_edge_prepare(const uce_edge_model *model, const uce_edge_frame *frame, void *pixels, uce_edge_error *error);

/* Which passes are drawn: the first `samples` of the 4096 that `seed` owns. */
typedef struct uce_edge_passes {
  int32_t samples; /* 0 for the number stored in the file */
  int32_t seed;
} uce_edge_passes;

/* One image's answer; the contract says what each number means. */
typedef struct uce_edge_answer {
  int32_t class_id;
  int32_t decision; /* UCE_EDGE_ACCEPT, ...; without a stored rule, only NAN is rejected */
  float confidence, uncertainty, model_uncertainty, standard_error, error_probability;
  float novelty, novelty_score; /* NAN for a file without novelty */
} uce_edge_answer;

/* Classify `count` images.
 *
 * passes         NULL for the file's own
 * answers        room for `count`
 * probabilities  room for `count` times the classes, image by image; NULL where they are not wanted */
int uce_edge_predict(const uce_edge_model *model, const uce_edge_image *images, size_t count,
                     const uce_edge_passes *passes, uce_edge_answer *answers, float *probabilities,
                     uce_edge_error *error);

/* The heatmaps of the images of one call. */
typedef struct uce_edge_maps uce_edge_maps;

/* As `uce_edge_predict`, and keeps the heatmaps: `maps` is for the functions below, and freed by `uce_edge_free_maps`.
 * It is NULL where the call fails. */
int uce_edge_predict_maps(const uce_edge_model *model, const uce_edge_image *images, size_t count,
                          const uce_edge_passes *passes, uce_edge_answer *answers, float *probabilities,
                          uce_edge_maps **maps, uce_edge_error *error);

/* The map of an image, in the order of the call: `height` rows of `width` values from the top, which live as long as
 * `maps`. The value of a place is its share of the predicted class's logit; of `uce_edge_heatmap_spread`, its standard
 * deviation over the passes. NULL, with a height and width of 0, for a file without this output, for merged calls that
 * predict different classes, for a class that no single pass predicts, and for a number that is none. */
const float *uce_edge_heatmap(const uce_edge_maps *maps, size_t image, int32_t *height, int32_t *width);
const float *uce_edge_heatmap_spread(const uce_edge_maps *maps, size_t image, int32_t *height, int32_t *width);

void uce_edge_free_maps(uce_edge_maps *maps);

/* Which labels are in the prediction set of an image.
 *
 * probabilities  of one image, from `uce_edge_predict`
 * in_set         room for a byte per class: 1 in the set, 0 outside; NULL where only the number is wanted
 *
 * Gives the number of labels, or -1 for a file without prediction sets. */
int32_t uce_edge_in_set(const uce_edge_model *model, const float *probabilities, unsigned char *in_set);

/* Answer `count` images of no meaning, `runs` times, so that the first real ones find memory and caches ready. */
int uce_edge_warm_up(const uce_edge_model *model, size_t count, const uce_edge_passes *passes, int32_t runs,
                     uce_edge_error *error);

/* Answer the file's own probe images, and compare with what it answered when it was published. Fails when a number is
 * farther off than rounding explains, and for a file without them; `difference`, which may be NULL, is the largest. */
int uce_edge_self_test(const uce_edge_model *model, double *difference, uce_edge_error *error);

#ifdef __cplusplus
}
#endif

#endif
