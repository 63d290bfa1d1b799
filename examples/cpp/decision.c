/* Reads the decision about one 8 x 8 gray image with the plain C API of ONNX Runtime; it needs nothing of uce-edge.
 *
 *     decision MODEL.onnx IMAGE.raw [SEED]...
 *
 * Prints 0 accept, 1 uncertain, 2 out of distribution or 3 both. A file without the input `seeds` takes no seeds. */
#include <stdio.h>
#include <stdlib.h>

#include <onnxruntime_c_api.h>

static const OrtApi *ort;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "error: %s\n", ort->GetErrorMessage(status));
  exit(1);
}

int main(int count, char **words) {
  const char *inputs[] = {"image", "seeds"}, *outputs[] = {"decision"};
  const int64_t sides[] = {1, 8, 8, 1}, passes[] = {count - 3};
  unsigned char pixels[64];
  int32_t seeds[4096], *decision;
  OrtEnv *environment;
  OrtSessionOptions *options;
  OrtSession *session;
  OrtMemoryInfo *memory;
  OrtValue *values[2] = {NULL, NULL}, *result = NULL;
  FILE *file = count >= 3 && count - 3 <= 4096 ? fopen(words[2], "rb") : NULL;
  if (file == NULL || fread(pixels, 1, sizeof pixels, file) != sizeof pixels) return 2;
  for (int i = 3; i < count; ++i) seeds[i - 3] = atoi(words[i]);
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "decision", &environment));
  check(ort->CreateSessionOptions(&options));
  check(ort->CreateSession(environment, words[1], options, &session));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(ort->CreateTensorWithDataAsOrtValue(memory, pixels, sizeof pixels, sides, 4,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, &values[0]));
  check(ort->CreateTensorWithDataAsOrtValue(memory, seeds, (size_t)passes[0] * sizeof *seeds, passes, 1,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &values[1]));
  check(ort->Run(session, NULL, inputs, (const OrtValue *const *)values, count > 3 ? 2 : 1, outputs, 1, &result));
  check(ort->GetTensorMutableData(result, (void **)&decision));
  printf("%d\n", *decision);
  return 0;
}
