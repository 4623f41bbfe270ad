/* What AMX's instructions on tile registers do, as functions of the same names and operands, one set a thread.

   Intel, Architecture Instruction Set Extensions Programming Reference, 319433, chapter 3. Sums of bfloat16 are rounded
   as float32 arithmetic rounds them, without flushing denormals. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static _Thread_local struct { int rows, row_bytes; uint8_t data[ROWS][ROW_BYTES]; } tiles[TILES];
static _Thread_local int is_configured;

/* A wrong use is an exception of the processor. */
static void require(int holds) { if (!holds) abort(); }

void emulated_ldtilecfg(const uint8_t *shape) {
    require(shape[0] == 1);
    for (int t = 0; t < TILES; t++) {
        memset(&tiles[t], 0, sizeof tiles[t]);
        tiles[t].row_bytes = shape[16 + 2 * t] | shape[17 + 2 * t] << 8;
        tiles[t].rows = shape[48 + t];
        require(tiles[t].rows <= ROWS && tiles[t].row_bytes <= ROW_BYTES);
    }
    is_configured = 1;
}

void emulated_tilerelease(void) { memset(tiles, 0, sizeof tiles); is_configured = 0; }

void emulated_tilezero(uint8_t t) { require(is_configured); memset(tiles[t].data, 0, sizeof tiles[t].data); }

void emulated_tileloadd64(uint8_t t, const uint8_t *from, int64_t stride) {
    emulated_tilezero(t);
    for (int r = 0; r < tiles[t].rows; r++) memcpy(tiles[t].data[r], from + r * stride, tiles[t].row_bytes);
}

void emulated_tilestored64(uint8_t t, uint8_t *to, int64_t stride) {
    require(is_configured);
    for (int r = 0; r < tiles[t].rows; r++) memcpy(to + r * stride, tiles[t].data[r], tiles[t].row_bytes);
}

static void check_shapes(int c, int a, int b) {
    require(is_configured && c != a && c != b && a != b);
    require(tiles[c].rows == tiles[a].rows && tiles[c].row_bytes == tiles[b].row_bytes);
    require(tiles[a].row_bytes == 4 * tiles[b].rows);
}

static void multiply_bytes(int c, int a, int b, int is_signed) {
    check_shapes(c, a, b);
    for (int m = 0; m < tiles[c].rows; m++)
        for (int n = 0; n < tiles[c].row_bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &tiles[c].data[m][4 * n], 4);
            for (int k = 0; k < tiles[a].row_bytes; k++) {
                uint8_t byte = tiles[a].data[m][k];
                sum += (uint32_t)((is_signed ? (int8_t)byte : byte) * (int8_t)tiles[b].data[k / 4][4 * n + k % 4]);
            }
            memcpy(&tiles[c].data[m][4 * n], &sum, 4);
        }
}

void emulated_tdpbusd(uint8_t c, uint8_t a, uint8_t b) { multiply_bytes(c, a, b, 0); }

void emulated_tdpbssd(uint8_t c, uint8_t a, uint8_t b) { multiply_bytes(c, a, b, 1); }

static float half_at(const uint8_t *at) {
    uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

void emulated_tdpbf16ps(uint8_t c, uint8_t a, uint8_t b) {
    check_shapes(c, a, b);
    for (int m = 0; m < tiles[c].rows; m++)
        for (int n = 0; n < tiles[c].row_bytes / 4; n++) {
            float sum;
            memcpy(&sum, &tiles[c].data[m][4 * n], 4);
            for (int k = 0; k < tiles[a].row_bytes / 2; k++)
                sum += half_at(&tiles[a].data[m][2 * k]) * half_at(&tiles[b].data[k / 2][4 * n + 2 * (k % 2)]);
            memcpy(&tiles[c].data[m][4 * n], &sum, 4);
        }
}
