// A session of ONNX Runtime by its C interface, which returns its errors: nothing here throws.

#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace uce_edge {

// What went wrong, in one sentence.
struct Failure {
  enum class Kind { none, failed, usage };  // `usage`: the request itself is wrong
  Kind kind = Kind::none;
  std::string message;

  explicit operator bool() const { return kind != Kind::none; }
  static Failure failed(std::string message) { return {Kind::failed, std::move(message)}; }
  static Failure usage(std::string message) { return {Kind::usage, std::move(message)}; }
};

// How a model is run.
struct Options {
  int threads = 0;  // of ONNX Runtime; 0 for all cores
  std::string provider = "cpu";  // "cuda", or a name that ONNX Runtime knows; never another in silence
  bool arena = true;             // keeps memory between calls: no call waits for it, and the largest stays taken
  int max_memory = 0;            // megabytes that the values of one call may take, about; 0 for 256
  // Called last, to set what is not named here; gives what a call of ONNX Runtime gave, null for success.
  std::function<OrtStatus*(const OrtApi&, OrtSessionOptions*)> configure;
};

// A model file, or its bytes, which may be let go of after loading: ONNX Runtime has taken what it needs.
struct Source {
  std::string path;  // of bytes, what messages call them
  const void* bytes = nullptr;
  std::size_t size = 0;
};

namespace detail {

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// The type and the shape of an input, or of an output's value.
struct Shape {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> sides;
};

class Session {
 public:
  struct Input {
    const char* name;
    const void* data;
    std::size_t bytes;
    Shape shape;
  };
  using Value = Owned<OrtValue>;

  Failure open(const Source& source, const Options& options) {
    api_ = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (api_ == nullptr) {
      return Failure::failed("ONNX Runtime " + std::string(OrtGetApiBase()->GetVersionString()) +
                             " is older than the headers of this program, which need 1." +
                             std::to_string(ORT_API_VERSION) + ".");
    }
    if (source.bytes == nullptr && !std::ifstream(source.path)) {
      return Failure::failed("There is no model file " + source.path + ".");
    }
    std::string reason = start();
    if (!reason.empty()) return Failure::failed("ONNX Runtime cannot be started: " + reason);
    Owned<OrtSessionOptions> settings{nullptr, api_->ReleaseSessionOptions};
    OrtSessionOptions* fresh = nullptr;
    if (!(reason = told(api_->CreateSessionOptions(&fresh))).empty()) return Failure::failed(reason);
    settings.reset(fresh);
    const Failure refused = configure(fresh, options);
    if (refused) return refused;
    OrtSession* session = nullptr;
    reason = told(source.bytes == nullptr
                      ? api_->CreateSession(environment_.get(), source.path.c_str(), fresh, &session)
                      : api_->CreateSessionFromArray(environment_.get(), source.bytes, source.size, fresh, &session));
    session_ = {session, api_->ReleaseSession};
    if (reason.empty()) return {};
    return Failure::failed(source.path + " is not an ONNX file that can be loaded: it is damaged, incomplete or " +
                           "something else. ONNX Runtime says: " + reason);
  }

  // The value of a metadata key; false when there is none.
  bool metadata(const char* key, std::string& text) const {
    OrtModelMetadata* found = nullptr;
    if (!told(api_->SessionGetModelMetadata(session_.get(), &found)).empty()) return false;
    const Owned<OrtModelMetadata> owned{found, api_->ReleaseModelMetadata};
    char* value = nullptr;
    if (!told(api_->ModelMetadataLookupCustomMetadataMap(found, allocator_, key, &value)).empty()) return false;
    return taken(value, text);
  }

  std::vector<std::string> inputs() const { return names(api_->SessionGetInputCount, api_->SessionGetInputName); }
  std::vector<std::string> outputs() const { return names(api_->SessionGetOutputCount, api_->SessionGetOutputName); }

  // Of an input that is a tensor; without sides for another.
  Shape input_shape(std::size_t index) const {
    OrtTypeInfo* type = nullptr;
    const OrtTensorTypeAndShapeInfo* info = nullptr;  // belongs to the type
    if (!told(api_->SessionGetInputTypeInfo(session_.get(), index, &type)).empty()) return {};
    const Owned<OrtTypeInfo> owned{type, api_->ReleaseTypeInfo};
    if (!told(api_->CastTypeInfoToTensorInfo(type, &info)).empty() || info == nullptr) return {};
    return shape_of(info);
  }

  // Runs the graph; says why not, or nothing. The data of the inputs is read where it lies.
  std::string run(const std::vector<Input>& inputs, const std::vector<const char*>& wanted,
                  std::vector<Value>& values) const {
    std::vector<Value> feed;
    std::vector<const OrtValue*> fed;
    std::vector<const char*> names;
    for (const Input& input : inputs) {
      OrtValue* value = nullptr;
      const auto& [type, sides] = input.shape;
      // ONNX Runtime takes a pointer that is not const, and does not write through it.
      auto* data = const_cast<void*>(input.data);
      const std::string reason = told(api_->CreateTensorWithDataAsOrtValue(memory_.get(), data, input.bytes,
                                                                           sides.data(), sides.size(), type, &value));
      if (!reason.empty()) return reason;
      feed.emplace_back(value, api_->ReleaseValue);
      fed.push_back(value);
      names.push_back(input.name);
    }
    std::vector<OrtValue*> given(wanted.size(), nullptr);
    const std::string reason = told(api_->Run(session_.get(), nullptr, names.data(), fed.data(), fed.size(),
                                              wanted.data(), wanted.size(), given.data()));
    values.clear();
    for (OrtValue* value : given) values.emplace_back(value, api_->ReleaseValue);
    return reason;
  }

  // The sides of a value; none if it has no shape.
  std::vector<std::int64_t> sides(const Value& value) const {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (value == nullptr || !told(api_->GetTensorTypeAndShape(value.get(), &info)).empty()) return {};
    const Owned<OrtTensorTypeAndShapeInfo> owned{info, api_->ReleaseTensorTypeAndShapeInfo};
    return shape_of(info).sides;
  }

  // A value's numbers, of which there must be so many of this type; else null.
  const void* numbers(const Value& value, ONNXTensorElementDataType type, std::size_t count) const {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    void* data = nullptr;
    if (value == nullptr || !told(api_->GetTensorTypeAndShape(value.get(), &info)).empty()) return nullptr;
    const Owned<OrtTensorTypeAndShapeInfo> owned{info, api_->ReleaseTensorTypeAndShapeInfo};
    std::size_t many = 1;
    const Shape shape = shape_of(info);
    for (const std::int64_t side : shape.sides) many *= static_cast<std::size_t>(side);
    if (shape.type != type || many != count) return nullptr;
    return told(api_->GetTensorMutableData(value.get(), &data)).empty() ? data : nullptr;
  }

 private:
  std::string start() {
    OrtEnv* environment = nullptr;
    // Errors are returned, once: its own log stays quiet.
    std::string reason = told(api_->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "uce_edge", &environment));
    environment_ = {environment, api_->ReleaseEnv};
    OrtMemoryInfo* memory = nullptr;
    if (reason.empty()) reason = told(api_->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    memory_ = {memory, api_->ReleaseMemoryInfo};
    if (reason.empty()) reason = told(api_->GetAllocatorWithDefaultOptions(&allocator_));
    return reason;
  }

  Failure configure(OrtSessionOptions* settings, const Options& options) const {
    std::string reason = told(api_->SetIntraOpNumThreads(settings, options.threads));
    if (reason.empty() && !options.arena) reason = told(api_->DisableCpuMemArena(settings));
    if (!reason.empty()) return Failure::failed(reason);
    if (options.provider == "cuda") {
      OrtCUDAProviderOptionsV2* card = nullptr;
      reason = told(api_->CreateCUDAProviderOptions(&card));
      const Owned<OrtCUDAProviderOptionsV2> owned{card, api_->ReleaseCUDAProviderOptions};
      if (reason.empty()) reason = told(api_->SessionOptionsAppendExecutionProvider_CUDA_V2(settings, card));
    } else if (options.provider != "cpu") {
      const char* name = options.provider.c_str();
      reason = told(api_->SessionOptionsAppendExecutionProvider(settings, name, nullptr, nullptr, 0));
    }
    if (!reason.empty()) {
      return Failure::failed("The provider " + options.provider + " cannot be used here. ONNX Runtime says: " + reason);
    }
    if (options.configure) reason = told(options.configure(*api_, settings));
    return reason.empty() ? Failure{} : Failure::failed("A session option was refused. ONNX Runtime says: " + reason);
  }

  // The first line of what a call complains of, or nothing.
  std::string told(OrtStatus* status) const {
    if (status == nullptr) return {};
    const Owned<OrtStatus> owned{status, api_->ReleaseStatus};
    const std::string message = api_->GetErrorMessage(status);
    const std::string line = message.substr(0, message.find('\n'));
    return line.empty() ? "it gives no reason" : line;
  }

  // A text that ONNX Runtime allocated.
  bool taken(char* value, std::string& text) const {
    if (value == nullptr) return false;
    text = value;
    told(api_->AllocatorFree(allocator_, value));
    return true;
  }

  template <typename Count, typename Name>
  std::vector<std::string> names(Count count, Name name) const {
    std::size_t many = 0;
    std::vector<std::string> result;
    if (!told(count(session_.get(), &many)).empty()) return result;
    for (std::size_t i = 0; i < many; ++i) {
      char* value = nullptr;
      std::string text;
      if (told(name(session_.get(), i, allocator_, &value)).empty() && taken(value, text)) result.push_back(text);
    }
    return result;
  }

  Shape shape_of(const OrtTensorTypeAndShapeInfo* info) const {
    Shape shape;
    std::size_t count = 0;
    bool known = told(api_->GetTensorElementType(info, &shape.type)).empty();
    known = known && told(api_->GetDimensionsCount(info, &count)).empty();
    shape.sides.resize(known ? count : 0);
    if (!told(api_->GetDimensions(info, shape.sides.data(), shape.sides.size())).empty()) shape.sides.clear();
    return shape;
  }

  const OrtApi* api_ = nullptr;
  OrtAllocator* allocator_ = nullptr;  // ONNX Runtime's own
  Owned<OrtEnv> environment_{nullptr, nullptr};
  Owned<OrtMemoryInfo> memory_{nullptr, nullptr};
  Owned<OrtSession> session_{nullptr, nullptr};  // let go of before the environment
};

}  // namespace detail
}  // namespace uce_edge
