/* What a device asks of the C interface beyond the example: rows with gaps and from below, many images a call, its own
 * session options, and refusals. Prints "ok", or what is not so. The arguments are a model and an image of it. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <onnxruntime_c_api.h>

#include "uce_edge.h"

#define MANY 40
#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      printf("line %d: %s (%s)\n", __LINE__, #condition, uce_edge_message(&error)); \
      return 1; \
    } \
  } while (0)

static uce_edge_error error;

static OrtStatus *count_calls(const OrtApi *api, OrtSessionOptions *options, void *data) {
  ++*(int *)data;
  return api->AddSessionConfigEntry(options, "session.intra_op.allow_spinning", "0");
}

static OrtStatus *refuse(const OrtApi *api, OrtSessionOptions *options, void *data) {
  (void)data;
  return api->AddSessionConfigEntry(options, "", "0");
}

static int says(const char *words) { return strstr(uce_edge_message(&error), words) != NULL; }

static int same(const uce_edge_answer *a, const uce_edge_answer *b, double within) {
  return a->class_id == b->class_id && fabs((double)(a->uncertainty - b->uncertainty)) <= within &&
         fabs((double)(a->model_uncertainty - b->model_uncertainty)) <= within &&
         fabs((double)(a->standard_error - b->standard_error)) <= within &&
         fabs((double)(a->confidence - b->confidence)) <= within;
}

int main(int count, char **words) {
  static unsigned char pixels[MANY * 64], gaps[8 * 20], reversed[64], name[3000];
  uce_edge_options options = {0}, other = {0};
  uce_edge_passes passes = {0, 0};
  uce_edge_model *model = NULL, *refused = NULL;
  uce_edge_image image = {0}, images[MANY];
  uce_edge_answer plain, answer, answers[MANY];
  uce_edge_info info;
  FILE *file = count == 3 ? fopen(words[2], "rb") : NULL;
  uce_edge_maps *maps = NULL;
  int32_t height = 1, width = 1;
  int calls = 0, i;
  CHECK(file != NULL && fread(pixels, 1, 64, file) == 64);
  fclose(file);

  options.threads = 1;
  options.no_arena = 1;
  options.configure = count_calls;
  options.data = &calls;
  CHECK(uce_edge_load(words[1], &options, &model, &error) == UCE_EDGE_OK);
  CHECK(calls == 1);
  uce_edge_describe(model, &info);
  CHECK(info.classes == 10 && info.height == 8 && info.width == 8 && info.channels == 1 && info.image_bytes == 64);
  CHECK(info.samples == 25 && info.calibrated_at == 25 && !info.is_float32);
  CHECK(strcmp(uce_edge_class_name(model, 9), "9") == 0);
  CHECK(uce_edge_class_name(model, 10) == NULL && uce_edge_class_name(model, -1) == NULL);
  CHECK(uce_edge_warm_up(model, 2, NULL, 2, &error) == UCE_EDGE_OK);

  /* The same pixels, however they lie. */
  image.pixels = pixels;
  CHECK(uce_edge_predict(model, &image, 1, NULL, &plain, NULL, &error) == UCE_EDGE_OK);
  CHECK(plain.decision == UCE_EDGE_ACCEPT);
  memset(gaps, 77, sizeof gaps);
  for (i = 0; i < 8; ++i) {
    memcpy(gaps + i * 20, pixels + i * 8, 8);
    memcpy(reversed + i * 8, pixels + (7 - i) * 8, 8);
  }
  image.pixels = gaps;
  image.stride = 20;
  CHECK(uce_edge_predict(model, &image, 1, NULL, &answer, NULL, &error) == UCE_EDGE_OK);
  CHECK(same(&plain, &answer, 0));
  image.pixels = reversed + 56;
  image.stride = -8;
  CHECK(uce_edge_predict(model, &image, 1, NULL, &answer, NULL, &error) == UCE_EDGE_OK);
  CHECK(same(&plain, &answer, 0));

  /* More images than one call takes, one after the other in memory and not. */
  for (i = 1; i < MANY * 64 / 64; ++i) {
    memcpy(pixels + i * 64, pixels, 64);
    pixels[i * 64 + i] ^= 255;
  }
  for (i = 0; i < MANY; ++i) {
    images[i].pixels = pixels + i * 64;
    images[i].stride = 0;
  }
  passes.samples = 5;
  CHECK(uce_edge_predict(model, images, MANY, &passes, answers, NULL, &error) == UCE_EDGE_OK);
  for (i = 0; i < MANY; i += 7) {
    CHECK(uce_edge_predict(model, &images[i], 1, &passes, &answer, NULL, &error) == UCE_EDGE_OK);
    CHECK(same(&answers[i], &answer, 1e-6));
  }
  for (i = 0; i < MANY; ++i) images[i].pixels = pixels + (MANY - 1 - i) * 64;
  answer = answers[3];
  CHECK(uce_edge_predict(model, images, MANY, &passes, answers, NULL, &error) == UCE_EDGE_OK);
  CHECK(same(&answers[MANY - 4], &answer, 1e-6));
  CHECK(uce_edge_predict(model, images, 0, &passes, answers, NULL, &error) == UCE_EDGE_OK);

  /* A file without heatmaps has none, and refuses nothing. */
  CHECK(uce_edge_predict_maps(model, images, 2, &passes, answers, NULL, &maps, &error) == UCE_EDGE_OK);
  for (i = 0; i < 3; ++i) {
    height = width = 7;
    CHECK(uce_edge_heatmap(maps, (size_t)i, &height, &width) == NULL && height == 0 && width == 0);
  }
  uce_edge_free_maps(maps);
  uce_edge_free_maps(NULL);

  /* What is refused. */
  image.stride = 7;
  CHECK(uce_edge_predict(model, &image, 1, NULL, &answer, NULL, &error) == UCE_EDGE_USAGE);
  CHECK(says("Expected `stride` to be at least the 8 bytes of a row, but got 7."));
  maps = (uce_edge_maps *)&image;
  CHECK(uce_edge_predict_maps(model, &image, 1, NULL, &answer, NULL, &maps, &error) == UCE_EDGE_USAGE && maps == NULL);
  image.pixels = NULL;
  CHECK(uce_edge_predict(model, &image, 1, NULL, &answer, NULL, &error) == UCE_EDGE_USAGE);
  passes.seed = 4096;
  CHECK(uce_edge_predict(model, images, 1, &passes, &answer, NULL, &error) == UCE_EDGE_USAGE);
  CHECK(says("Expected `seed` to be between 0 and 4095, but got 4096."));
  passes.samples = -1;
  CHECK(uce_edge_predict(model, images, 1, &passes, &answer, NULL, NULL) == UCE_EDGE_USAGE);
  CHECK(uce_edge_self_test(model, NULL, &error) == UCE_EDGE_OK);
  uce_edge_free(model);

  CHECK(uce_edge_load(NULL, NULL, &refused, &error) == UCE_EDGE_USAGE && refused == NULL);
  CHECK(uce_edge_load_bytes("text", 4, NULL, NULL, &refused, &error) == UCE_EDGE_FAILED && refused == NULL);
  CHECK(says("The model is not an ONNX file") && says("ONNX Runtime says: "));
  other.configure = refuse;
  CHECK(uce_edge_load(words[1], &other, &refused, &error) == UCE_EDGE_FAILED && says("A session option was refused."));
  other.configure = NULL;
  other.provider = "no such provider";
  CHECK(uce_edge_load(words[1], &other, &refused, &error) == UCE_EDGE_FAILED && says("Unknown provider name"));
  other.provider = NULL;
  other.threads = -1;
  CHECK(uce_edge_load(words[1], &other, &refused, &error) == UCE_EDGE_USAGE && says("`threads`"));
  memset(name, 'n', sizeof name - 1);
  CHECK(uce_edge_load((const char *)name, NULL, &refused, &error) == UCE_EDGE_FAILED);
  CHECK(strlen(uce_edge_message(&error)) == sizeof error.text - 1);
  uce_edge_free(NULL);
  printf("ok\n");
  return 0;
}
