// Runs an artifact with TVM's C++ interface and nothing of subtune's: run_artifact FOLDER < inputs > outputs
// For a program that takes addresses, whose inputs and outputs are as below.
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

static void* aligned_copy(const std::string& bytes, size_t nbytes) {
  void* place = std::aligned_alloc(64, (nbytes + 63) / 64 * 64 + 64);
  bytes.copy(static_cast<char*>(place), bytes.size());
  return place;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  namespace json = tvm::ffi::json;
  auto manifest = json::Parse(read(folder + "/manifest.json")).cast<json::Object>();
  auto arena_nbytes = manifest["memory"].cast<json::Object>()["arena_nbytes"].cast<int64_t>();

  const std::string bytes = read(folder + "/weights.bin");
  void* weights = aligned_copy(bytes, bytes.size());
  void* arena = aligned_copy("", arena_nbytes);

  // Inputs and outputs as the manifest has them: x float32[4, 32] -> y float32[4, 16], s float32[4].
  std::vector<float> x(4 * 32), y(4 * 16), s(4);
  if (std::fread(x.data(), sizeof(float), x.size(), stdin) != x.size()) return 2;
  void *x_at = x.data(), *y_at = y.data(), *s_at = s.data();

  auto library = tvm::ffi::Module::LoadFromFile(folder + "/model.so");
  auto run = library->GetFunction("main").value();
  auto place = [](void** pointer) { return reinterpret_cast<int64_t>(pointer); };
  run(int64_t{0}, place(&weights), place(&arena), place(&x_at), place(&y_at), place(&s_at));
  std::fwrite(y.data(), sizeof(float), y.size(), stdout);
  std::fwrite(s.data(), sizeof(float), s.size(), stdout);
}
