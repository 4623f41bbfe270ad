// Runs several models at once, each in many threads: run_models THREADS RUNS FOLDER... FOLDER.in holds the inputs at the
// largest values of the model's symbols, as raw bytes; the outputs go to FOLDER.out, and are the same in every run.
#include <subtune.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using Bytes = std::vector<char>;

class Model {
 public:
  explicit Model(const std::string& folder) : model_(subtune_load(folder.c_str(), 0), subtune_free) {
    if (!model_) throw std::runtime_error(subtune_error());
    for (int i = 0; i < subtune_symbol_count(model_.get()); ++i) symbols.push_back(subtune_greatest(model_.get(), i));
    symbols.push_back(0);  // a model without symbols has an address to give, too
  }

  std::vector<Bytes> run(const Bytes& inputs) const {
    std::vector<const void*> given;
    size_t at = 0;
    for (int i = 0; i < subtune_count(model_.get(), SUBTUNE_INPUT); ++i) {
      given.push_back(inputs.data() + at);
      at += subtune_nbytes(model_.get(), SUBTUNE_INPUT, i, symbols.data());
    }
    if (at != inputs.size()) throw std::runtime_error("the inputs have another size");
    std::vector<Bytes> outputs;
    std::vector<void*> places;
    for (int i = 0; i < subtune_count(model_.get(), SUBTUNE_OUTPUT); ++i) {
      outputs.emplace_back(subtune_nbytes(model_.get(), SUBTUNE_OUTPUT, i, symbols.data()));
      places.push_back(outputs.back().data());
    }
    if (subtune_run(model_.get(), given.data(), places.data(), symbols.data()) != 0) {
      throw std::runtime_error(subtune_error());
    }
    return outputs;
  }

  std::vector<int64_t> symbols;

 private:
  std::unique_ptr<subtune_model, decltype(&subtune_free)> model_;
};

int main(int argc, char** argv) try {
  if (argc < 4) return 2;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 3; i < argc; ++i) {
    const std::string folder = argv[i];
    auto model = std::make_shared<Model>(folder);
    std::ifstream file(folder + ".in", std::ios::binary);
    const Bytes inputs{std::istreambuf_iterator<char>(file), {}};
    const auto expected = model->run(inputs);
    std::ofstream written(folder + ".out", std::ios::binary);
    for (const Bytes& output : expected) written.write(output.data(), output.size());
    for (int thread = 0; thread < std::stoi(argv[1]); ++thread) {
      threads.emplace_back([=, &wrong] {
        for (int run = 0; run < std::stoi(argv[2]); ++run) wrong += model->run(inputs) != expected;
      });
    }
  }
  for (auto& thread : threads) thread.join();
  std::printf("%d runs gave something else\n", wrong.load());
  return wrong != 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "run_models: %s\n", error.what());
  return 2;
}
