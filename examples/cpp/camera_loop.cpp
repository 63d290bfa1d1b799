// A camera loop: one frame after the other at a fixed rate, and how long each answer took. The camera is synthetic: it
// writes frames of the model's size into one buffer, whose rows have a gap, as those of real cameras often do.
//
//     camera_loop MODEL.onnx [FRAMES] [FRAMES-PER-SECOND] [THREADS] [SAMPLES] [ARENA]
//
// By default 2000 frames, back to back (0 frames a second), one thread, the file's own samples, and an arena (1).

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "uce_edge.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// Milliseconds that the processor has given the program.
double processor() { return 1e3 * double(std::clock()) / CLOCKS_PER_SEC; }

double peak_megabytes() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return double(used.ru_maxrss) / 1024;
}

void run(const std::string& path, int frames, double rate, int threads, int samples, bool arena) {
  uce_edge::Options options;
  options.arena = arena;
  options.threads = threads;
  // Threads that wait for each other sleep rather than turn: the cores stay free for the rest of the device.
  options.configure = [](const OrtApi& api, OrtSessionOptions* session) {
    return api.AddSessionConfigEntry(session, "session.intra_op.allow_spinning", "0");
  };
  const double started = processor();
  const uce_edge::Model model({path}, options);
  const double load = processor() - started;
  const uce_edge::Metadata& m = model.metadata();
  const auto seeds = model.seeds(samples > 0 ? std::optional<std::int64_t>(samples) : std::nullopt);
  const std::size_t row = m.image_bytes() / std::size_t(m.height), stride = row + 64;
  std::vector<std::uint8_t> frame(stride * std::size_t(m.height));
  std::mt19937 random(0);
  const uce_edge::Passes passes{static_cast<std::int64_t>(seeds.size()), 0};
  const double before = processor();
  model.warm_up(1, passes, 1);
  const double first = processor() - before;
  model.warm_up(1, passes, 9);

  std::vector<double> took, computed;  // by the clock, and by the time that the processor gave the program
  int rejected = 0, late = 0;
  auto next = Clock::now();
  const std::chrono::duration<double> period(rate > 0 ? 1 / rate : 0);
  for (int i = 0; i < frames; ++i) {
    for (std::uint8_t& value : frame) value = static_cast<std::uint8_t>(m.float32 ? 0 : random());
    std::this_thread::sleep_until(next);
    const double used = processor();
    const auto begin = Clock::now();
    const auto answers = model.predict({{frame.data(), std::ptrdiff_t(stride)}}, seeds);
    const auto time = Clock::now() - begin;
    took.push_back(milliseconds(time));
    computed.push_back(processor() - used);
    rejected += answers[0].decision != uce_edge::Decision::accept;
    late += rate > 0 && time > period;
    next = rate > 0 ? next + std::chrono::duration_cast<Clock::duration>(period) : Clock::now();
  }
  std::sort(took.begin(), took.end());
  std::sort(computed.begin(), computed.end());
  const auto place = [&](double share) { return std::size_t(share * double(took.size() - 1)); };
  std::cout << "{\"frames\": " << frames << ", \"samples\": " << seeds.size() << ", \"threads\": " << threads
            << ", \"p50_ms\": " << took[place(0.5)] << ", \"p95_ms\": " << took[place(0.95)]
            << ", \"p99_ms\": " << took[place(0.99)] << ", \"max_ms\": " << took.back()
            << ", \"processor_p50_ms\": " << computed[place(0.5)]
            << ", \"processor_p99_ms\": " << computed[place(0.99)] << ", \"processor_first_ms\": " << first
            << ", \"processor_load_ms\": " << load << ", \"peak_mb\": " << peak_megabytes() << ", \"late\": " << late
            << ", \"rejected\": " << rejected << "}\n";
}

}  // namespace

int main(int count, char** words) {
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);  // before the first model
  const auto number = [&](int place, double usual) { return place < count ? std::atof(words[place]) : usual; };
  if (count < 2 || number(2, 2000) < 1) {
    std::cerr << "Usage: camera_loop MODEL.onnx [FRAMES] [FRAMES-PER-SECOND] [THREADS] [SAMPLES] [ARENA]\n";
    return 2;
  }
  try {
    run(words[1], int(number(2, 2000)), number(3, 0), int(number(4, 1)), int(number(5, 0)),
        number(6, 1) != 0);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
