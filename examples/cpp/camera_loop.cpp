// A camera loop: one frame after the other at a fixed rate, and how long each answer took. The camera is synthetic: it
// writes frames of the model's size into one buffer, whose rows have a gap, as those of real cameras often do.
//
//     camera_loop MODEL.onnx [FRAMES] [FRAMES-PER-SECOND] [THREADS] [SAMPLES]     (by default 2000, 0, 1, the file's)
//
// 0 frames a second asks for them back to back.

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

void run(const std::string& path, int frames, double rate, int threads, int samples) {
  uce_edge::Options options;
  options.threads = threads;
  // Threads that wait for each other sleep rather than turn: the cores stay free for the rest of the device.
  options.configure = [](const OrtApi& api, OrtSessionOptions* session) {
    return api.AddSessionConfigEntry(session, "session.intra_op.allow_spinning", "0");
  };
  const auto started = Clock::now();
  const uce_edge::Model model({path}, options);
  const double load = milliseconds(Clock::now() - started);
  const uce_edge::Metadata& m = model.metadata();
  const auto seeds = model.seeds(samples > 0 ? std::optional<std::int64_t>(samples) : std::nullopt);
  const auto limits = m.limits();
  const std::size_t row = m.image_bytes() / std::size_t(m.height), stride = row + 64;
  std::vector<std::uint8_t> frame(stride * std::size_t(m.height));
  std::mt19937 random(0);
  const auto before = Clock::now();
  model.warm_up(1, {static_cast<std::int64_t>(seeds.size()), 0}, 10);
  const double warm_up = milliseconds(Clock::now() - before);

  std::vector<double> took, computed;  // by the clock, and by the time that the processor gave the program
  int rejected = 0, late = 0;
  auto next = Clock::now();
  const std::chrono::duration<double> period(rate > 0 ? 1 / rate : 0);
  for (int i = 0; i < frames; ++i) {
    for (std::uint8_t& value : frame) value = static_cast<std::uint8_t>(m.float32 ? 0 : random());
    std::this_thread::sleep_until(next);
    const std::clock_t used = std::clock();
    const auto begin = Clock::now();
    const auto answers = model.predict({{frame.data(), std::ptrdiff_t(stride)}}, seeds);
    const auto time = Clock::now() - begin;
    took.push_back(milliseconds(time));
    computed.push_back(1e3 * double(std::clock() - used) / CLOCKS_PER_SEC);
    rejected += limits && answers[0].rejected(*limits);
    late += rate > 0 && time > period;
    next = rate > 0 ? next + std::chrono::duration_cast<Clock::duration>(period) : Clock::now();
  }
  std::sort(took.begin(), took.end());
  std::sort(computed.begin(), computed.end());
  const auto place = [&](double share) { return std::size_t(share * double(took.size() - 1)); };
  std::cout << "{\"frames\": " << frames << ", \"samples\": " << seeds.size() << ", \"threads\": " << threads
            << ", \"load_ms\": " << load << ", \"warm_up_ms\": " << warm_up << ", \"p50_ms\": " << took[place(0.5)]
            << ", \"p95_ms\": " << took[place(0.95)] << ", \"p99_ms\": " << took[place(0.99)]
            << ", \"max_ms\": " << took.back() << ", \"processor_p50_ms\": " << computed[place(0.5)]
            << ", \"processor_p99_ms\": " << computed[place(0.99)] << ", \"late\": " << late << ", \"rejected\": " << rejected << "}\n";
}

}  // namespace

int main(int count, char** words) {
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);  // before the first model
  const auto number = [&](int place, double usual) { return place < count ? std::atof(words[place]) : usual; };
  if (count < 2 || number(2, 2000) < 1) {
    std::cerr << "Usage: camera_loop MODEL.onnx [FRAMES] [FRAMES-PER-SECOND] [THREADS] [SAMPLES]\n";
    return 2;
  }
  try {
    run(words[1], int(number(2, 2000)), number(3, 0), int(number(4, 1)), int(number(5, 0)));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
