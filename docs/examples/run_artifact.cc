// Runs an artifact whose program takes addresses. Usage: run_artifact FOLDER ARENA_NBYTES
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[1];
  const size_t arena_nbytes = std::stoull(argv[2]);  // memory.arena_nbytes of manifest.json

  std::ifstream file(folder + "/weights.bin", std::ios::binary | std::ios::ate);
  const size_t nbytes = file.tellg();
  file.seekg(0);
  void* weights = std::aligned_alloc(64, (nbytes + 63) / 64 * 64);
  file.read(static_cast<char*>(weights), nbytes);
  void* arena = std::aligned_alloc(64, arena_nbytes + 64);

  // Inputs and outputs as the manifest has them: x float32[4, 32] -> y float32[4, 16], s float32[4].
  std::vector<float> x(4 * 32, 1.0f), y(4 * 16), s(4);
  void *x_at = x.data(), *y_at = y.data(), *s_at = s.data();

  auto library = tvm::ffi::Module::LoadFromFile(folder + "/model.so");
  auto run = library->GetFunction("main").value();
  auto place = [](void** pointer) { return reinterpret_cast<int64_t>(pointer); };
  run(int64_t{0}, place(&weights), place(&arena), place(&x_at), place(&y_at), place(&s_at));
  std::printf("%f %f\n", y[0], s[0]);
}
