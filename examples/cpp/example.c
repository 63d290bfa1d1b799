/* Classifies raw images with a uce-edge model file, from C99: the file is loaded from memory, the images are read where
 * they lie, and answered in one call.
 *
 *     uce_edge_c MODEL.onnx SAMPLES SEED IMAGE.raw...      (0 samples: as many as the file says) */

#define _POSIX_C_SOURCE 200112L /* setenv */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "uce_edge.h"

/* The content of a file; NULL when it cannot be read. */
static unsigned char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  unsigned char *bytes = NULL;
  long end = -1;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
  if (end >= 0) {
    rewind(file);
    *size = (size_t)end;
    bytes = malloc(*size + 1);
    if (bytes != NULL && fread(bytes, 1, *size, file) != *size) {
      free(bytes);
      bytes = NULL;
    }
  }
  if (file != NULL) fclose(file);
  return bytes;
}

static void print_number(const char *name, float value) {
  if (isfinite(value)) {
    printf(", \"%s\": %.9g", name, (double)value);
  } else {
    printf(", \"%s\": null", name);
  }
}

/* The labels of the prediction set in the order of the classes, or null. */
static void print_set(const uce_edge_model *model, const float *probabilities, int classes) {
  unsigned char *in_set = calloc((size_t)classes, 1);
  int i, shown = 0;
  if (in_set == NULL || uce_edge_in_set(model, probabilities, in_set) < 0) {
    printf(", \"set\": null");
  } else {
    printf(", \"set\": [");
    for (i = 0; i < classes; ++i) {
      if (in_set[i]) printf("%s\"%s\"", shown++ > 0 ? ", " : "", uce_edge_class_name(model, i));
    }
    printf("]");
  }
  free(in_set);
}

/* A map with its size, or null. */
static void print_map(const char *name, const float *values, int height, int width) {
  int i;
  if (values == NULL) {
    printf(", \"%s\": null", name);
    return;
  }
  printf(", \"%s\": {\"height\": %d, \"width\": %d, \"values\": [", name, height, width);
  for (i = 0; i < height * width; ++i) printf("%s%.9g", i > 0 ? ", " : "", (double)values[i]);
  printf("]}");
}

static void print_maps(const uce_edge_maps *maps, size_t image) {
  int32_t height, width;
  const float *values = uce_edge_heatmap(maps, image, &height, &width);
  print_map("heatmap", values, (int)height, (int)width);
  values = uce_edge_heatmap_spread(maps, image, &height, &width);
  print_map("heatmap_spread", values, (int)height, (int)width);
}

static void print_answer(const uce_edge_model *model, const uce_edge_answer *answer, const float *probabilities,
                         int classes) {
  static const char *const reasons[] = {"null", "\"uncertain\"", "\"out-of-distribution\"", "\"both\""};
  int i;
  printf("{\"label\": \"%s\", \"class_id\": %d", uce_edge_class_name(model, answer->class_id), (int)answer->class_id);
  printf(", \"probabilities\": [");
  for (i = 0; i < classes; ++i) printf("%s%.9g", i > 0 ? ", " : "", (double)probabilities[i]);
  printf("]");
  print_number("confidence", answer->confidence);
  print_number("uncertainty", answer->uncertainty);
  print_number("model_uncertainty", answer->model_uncertainty);
  print_number("standard_error", answer->standard_error);
  print_number("error_probability", answer->error_probability);
  print_number("novelty", answer->novelty);
  print_number("novelty_score", answer->novelty_score);
  printf(", \"decision\": \"%s\", \"reason\": %s", answer->decision == UCE_EDGE_ACCEPT ? "accept" : "reject",
         reasons[answer->decision]);
  print_set(model, probabilities, classes);
}

int main(int count, char **words) {
  const int images = count - 4;
  uce_edge_error error = {{0}};
  uce_edge_options options = {0};
  uce_edge_passes passes = {0, 0};
  uce_edge_info info;
  uce_edge_model *model = NULL;
  uce_edge_image *views = NULL;
  uce_edge_answer *answers = NULL;
  uce_edge_maps *maps = NULL;
  float *probabilities = NULL;
  unsigned char *bytes;
  size_t size = 0;
  int i, status = UCE_EDGE_FAILED;

  if (images < 1) {
    fprintf(stderr, "Usage: %s MODEL.onnx SAMPLES SEED IMAGE.raw...\n", words[0]);
    return UCE_EDGE_USAGE;
  }
  /* Before a model is loaded: ONNX Runtime would write a device id to disk and report to its maker. */
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);
  passes.samples = (int32_t)strtol(words[2], NULL, 10);
  passes.seed = (int32_t)strtol(words[3], NULL, 10);
  options.threads = 1;
  options.provider = getenv("UCE_EDGE_PROVIDER");

  bytes = read_file(words[1], &size);
  if (bytes == NULL) {
    snprintf(error.text, sizeof error.text, "%s cannot be read.", words[1]);
  } else {
    status = uce_edge_load_bytes(bytes, size, words[1], &options, &model, &error);
    free(bytes);
  }
  if (status == UCE_EDGE_OK) status = uce_edge_warm_up(model, 1, NULL, 1, &error);
  if (status == UCE_EDGE_OK) {
    uce_edge_describe(model, &info);
    views = calloc((size_t)images, sizeof *views);
    answers = calloc((size_t)images, sizeof *answers);
    probabilities = calloc((size_t)(images * info.classes), sizeof *probabilities);
    if (views == NULL || answers == NULL || probabilities == NULL) {
      status = UCE_EDGE_FAILED;
      snprintf(error.text, sizeof error.text, "The memory is full.");
    }
  }
  for (i = 0; i < images && status == UCE_EDGE_OK; ++i) {
    views[i].pixels = read_file(words[4 + i], &size);
    if (views[i].pixels == NULL || size != info.image_bytes) {
      status = UCE_EDGE_FAILED;
      snprintf(error.text, sizeof error.text, "%s is not a file of %lu bytes.", words[4 + i],
               (unsigned long)info.image_bytes);
    }
  }
  if (status == UCE_EDGE_OK) {
    status = uce_edge_predict_maps(model, views, (size_t)images, &passes, answers, probabilities, &maps, &error);
  }
  for (i = 0; i < images && status == UCE_EDGE_OK; ++i) {
    print_answer(model, &answers[i], probabilities + i * info.classes, info.classes);
    print_maps(maps, (size_t)i);
    printf("}\n");
  }
  if (status != UCE_EDGE_OK) fprintf(stderr, "error: %s\n", uce_edge_message(&error));
  for (i = 0; i < images && views != NULL; ++i) free((void *)views[i].pixels);
  free(views);
  free(answers);
  free(probabilities);
  uce_edge_free_maps(maps);
  uce_edge_free(model);
  return status;
}
