/* Prepares and answers frames through the C interface: reads "MODEL WIDTH HEIGHT CHANNELS" and the pixels of a frame from
 * stdin, and writes the pixels that the model takes; with the argument "answer", its class and uncertainty. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "uce_edge.h"

static int answer(const uce_edge_model *model, const unsigned char *pixels, uce_edge_error *error) {
  uce_edge_image image = {0};
  uce_edge_answer found;
  int status;
  image.pixels = pixels;
  status = uce_edge_predict(model, &image, 1, NULL, &found, NULL, error);
  if (status == UCE_EDGE_OK) printf("%d %.9g\n", (int)found.class_id, (double)found.uncertainty);
  return status;
}

int main(int count, char **words) {
  char path[1000];
  int width, height, channels, status = UCE_EDGE_OK;
  uce_edge_error error;
  while (status == UCE_EDGE_OK && scanf("%999s %d %d %d", path, &width, &height, &channels) == 4 && getchar() == '\n') {
    const size_t size = (size_t)width * (size_t)height * (size_t)channels;
    unsigned char *frame = malloc(size), *pixels = NULL;
    uce_edge_model *model = NULL;
    uce_edge_frame view = {0};
    uce_edge_info info;
    if (frame == NULL || fread(frame, 1, size, stdin) != size) return 3;
    view.pixels = frame;
    view.width = width;
    view.height = height;
    view.channels = channels;
    status = uce_edge_load(path, NULL, &model, &error);
    if (status == UCE_EDGE_OK) {
      uce_edge_describe(model, &info);
      pixels = malloc(info.image_bytes);
      status = uce_edge_prepare(model, &view, pixels, &error);
    }
    if (status == UCE_EDGE_OK && count > 1 && strcmp(words[1], "answer") == 0) {
      status = answer(model, pixels, &error);
    } else if (status == UCE_EDGE_OK) {
      fwrite(pixels, 1, info.image_bytes, stdout);
    }
    free(frame);
    free(pixels);
    uce_edge_free(model);
  }
  if (status != UCE_EDGE_OK) fprintf(stderr, "error: %s\n", uce_edge_message(&error));
  return status;
}
