// What a program does that has MPI alone: rows packed per (token, rank), MPI_Alltoallv there and back, sums per token.
// Arguments: tokens hidden topk experts warmup iterations pairs seed. Rank 0 prints one line of JSON.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

static int ranks, rank, tokens, hidden, topk, experts;
static bf16 *x, *packed, *received, *returned, *combined;
static int *ids;
static float *weights;
/* Ids and weights of a row: 2 * topk words. */
static uint32_t *packed_choices, *received_choices;
/* [token][rank]: number of its row in what is sent, -1 for none. */
static int *place;
static int *send_rows, *send_first, *receive_rows, *receive_first;
static float *sum;
static MPI_Datatype row_type, choices_type;

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) {
    fprintf(stderr, "alltoallv: no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  /* Pages are there before anything is timed. */
  memset(memory, 0, bytes);
  return memory;
}

static float widen(bf16 bits) {
  uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

/* To nearest, ties to even; of finite values. */
static bf16 narrow(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  return (bf16)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static uint64_t state;

static uint32_t next_random(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 32);
}

/* Each token chooses different experts, all alike. */
static void choose(uint64_t seed) {
  state = (seed + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)rank * 0xbf58476d1ce4e5b9ull;
  for (int token = 0; token < tokens; token++) {
    int *chosen = ids + (size_t)token * topk;
    for (int k = 0; k < topk; k++) {
      int again;
      do {
        chosen[k] = (int)(next_random() % (uint32_t)experts);
        again = 0;
        for (int before = 0; before < k; before++) again |= chosen[before] == chosen[k];
      } while (again);
    }
  }
}

static int exclusive_sums(const int *counts, int *first) {
  int total = 0;
  for (int peer = 0; peer < ranks; peer++) {
    first[peer] = total;
    total += counts[peer];
  }
  return total;
}

static void dispatch(void) {
  int per_rank = experts / ranks;
  memset(send_rows, 0, sizeof(int) * (size_t)ranks);
  for (size_t at = 0; at < (size_t)tokens * ranks; at++) place[at] = -1;
  for (int token = 0; token < tokens; token++) {
    for (int k = 0; k < topk; k++) {
      int peer = ids[(size_t)token * topk + k] / per_rank;
      int *to = &place[(size_t)token * ranks + peer];
      if (*to < 0) *to = send_rows[peer]++;
    }
  }
  exclusive_sums(send_rows, send_first);
  MPI_Alltoall(send_rows, 1, MPI_INT, receive_rows, 1, MPI_INT, MPI_COMM_WORLD);
  exclusive_sums(receive_rows, receive_first);
  for (int token = 0; token < tokens; token++) {
    for (int peer = 0; peer < ranks; peer++) {
      int *at = &place[(size_t)token * ranks + peer];
      if (*at < 0) continue;
      *at += send_first[peer];
      memcpy(packed + (size_t)*at * hidden, x + (size_t)token * hidden, sizeof(bf16) * (size_t)hidden);
      uint32_t *choices = packed_choices + (size_t)*at * 2 * topk;
      memcpy(choices, ids + (size_t)token * topk, 4 * (size_t)topk);
      memcpy(choices + topk, weights + (size_t)token * topk, 4 * (size_t)topk);
    }
  }
  /* What comes lies by source rank, then by token: as experts need it, without unpacking. */
  MPI_Alltoallv(packed, send_rows, send_first, row_type, received, receive_rows, receive_first, row_type, MPI_COMM_WORLD);
  MPI_Alltoallv(packed_choices, send_rows, send_first, choices_type, received_choices, receive_rows, receive_first,
                choices_type, MPI_COMM_WORLD);
}

/* Experts have left their results where the rows came. */
static void combine(void) {
  MPI_Alltoallv(received, receive_rows, receive_first, row_type, returned, send_rows, send_first, row_type, MPI_COMM_WORLD);
  for (int token = 0; token < tokens; token++) {
    memset(sum, 0, sizeof(float) * (size_t)hidden);
    for (int peer = 0; peer < ranks; peer++) {
      int at = place[(size_t)token * ranks + peer];
      if (at < 0) continue;
      const bf16 *row = returned + (size_t)at * hidden;
      for (int element = 0; element < hidden; element++) sum[element] += widen(row[element]);
    }
    bf16 *out = combined + (size_t)token * hidden;
    for (int element = 0; element < hidden; element++) out[element] = narrow(sum[element]);
  }
}

/* Rows of token t hold 1 + t % 8: their sums are exact. */
static void check(void) {
  for (int token = 0; token < tokens; token++) {
    int rows = 0;
    for (int peer = 0; peer < ranks; peer++) rows += place[(size_t)token * ranks + peer] >= 0;
    for (int element = 0; element < hidden; element++) {
      float got = widen(combined[(size_t)token * hidden + element]);
      if (got == (float)(rows * (1 + token % 8))) continue;
      fprintf(stderr, "alltoallv: rank %d got %g for token %d, expected %d\n", rank, got, token, rows * (1 + token % 8));
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
}

/* Milliseconds of the slowest rank, by iteration. */
static void print_slowest(const char *name, double *own, int count) {
  double *slowest = allocate(sizeof(double) * (size_t)count);
  MPI_Reduce(own, slowest, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("\"%s\":[", name);
    for (int at = 0; at < count; at++) printf("%s%.4f", at == 0 ? "" : ",", slowest[at] * 1000);
    printf("],");
  }
  free(slowest);
}

static int later(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double quantile(const double *sorted, int count, double q) {
  double at = q * (count - 1);
  int below = (int)at;
  int above = below + 1 < count ? below + 1 : below;
  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static double timed(void (*call)(void)) {
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  call();
  return MPI_Wtime() - begin;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc != 9) {
    fprintf(stderr, "alltoallv: expected tokens hidden topk experts warmup iterations pairs seed\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  tokens = atoi(argv[1]);
  hidden = atoi(argv[2]);
  topk = atoi(argv[3]);
  experts = atoi(argv[4]);
  int warmup = atoi(argv[5]), iterations = atoi(argv[6]), pairs = atoi(argv[7]);
  if (tokens < 1 || hidden < 1 || topk < 1 || iterations < 1 || pairs < 1 || experts % ranks != 0 || topk > experts) {
    fprintf(stderr, "alltoallv: counts must be positive, and %d experts a multiple of %d ranks\n", experts, ranks);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  size_t most_sent = (size_t)tokens * (size_t)(topk < ranks ? topk : ranks);
  size_t row_bytes = sizeof(bf16) * (size_t)hidden;
  ids = allocate(4 * (size_t)tokens * topk);
  weights = allocate(4 * (size_t)tokens * topk);
  x = allocate(row_bytes * (size_t)tokens);
  combined = allocate(row_bytes * (size_t)tokens);
  packed = allocate(row_bytes * most_sent);
  returned = allocate(row_bytes * most_sent);
  packed_choices = allocate(8 * (size_t)topk * most_sent);
  place = allocate(sizeof(int) * (size_t)tokens * ranks);
  sum = allocate(sizeof(float) * (size_t)hidden);
  send_rows = allocate(sizeof(int) * (size_t)ranks);
  send_first = allocate(sizeof(int) * (size_t)ranks);
  receive_rows = allocate(sizeof(int) * (size_t)ranks);
  receive_first = allocate(sizeof(int) * (size_t)ranks);
  /* All tokens of all ranks might come. */
  received = allocate(row_bytes * (size_t)tokens * ranks);
  received_choices = allocate(8 * (size_t)topk * (size_t)tokens * ranks);
  MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &row_type);
  MPI_Type_contiguous(8 * topk, MPI_BYTE, &choices_type);
  MPI_Type_commit(&row_type);
  MPI_Type_commit(&choices_type);
  choose((uint64_t)atoll(argv[8]));
  for (int token = 0; token < tokens; token++)
    for (int element = 0; element < hidden; element++) x[(size_t)token * hidden + element] = narrow((float)(1 + token % 8));
  for (size_t at = 0; at < (size_t)tokens * topk; at++) weights[at] = 1.0f / (float)topk;

  double *there = allocate(sizeof(double) * (size_t)iterations), *back = allocate(sizeof(double) * (size_t)iterations);
  for (int iteration = -warmup; iteration < iterations; iteration++) {
    double forth = timed(dispatch), home = timed(combine);
    if (iteration < 0) continue;
    there[iteration] = forth;
    back[iteration] = home;
  }
  check();

  double *periods = allocate(sizeof(double) * (size_t)pairs);
  MPI_Barrier(MPI_COMM_WORLD);
  double before = MPI_Wtime();
  for (int pair = -2; pair < pairs; pair++) {
    dispatch();
    combine();
    double now = MPI_Wtime();
    if (pair >= 0) periods[pair] = now - before;
    before = now;
  }
  qsort(periods, (size_t)pairs, sizeof(double), later);
  double own[2] = {quantile(periods, pairs, 0.5), quantile(periods, pairs, 0.99)}, slowest[2];
  MPI_Reduce(own, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);

  /* Rows that cross from host to host; hosts are told apart by their names. */
  char name[MPI_MAX_PROCESSOR_NAME] = {0}, *names = allocate((size_t)ranks * MPI_MAX_PROCESSOR_NAME);
  int length;
  MPI_Get_processor_name(name, &length);
  MPI_Allgather(name, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, MPI_COMM_WORLD);
  long long crossing = 0, all_crossing = 0;
  for (int peer = 0; peer < ranks; peer++)
    if (strcmp(names + (size_t)peer * MPI_MAX_PROCESSOR_NAME, name) != 0) crossing += send_rows[peer];
  MPI_Reduce(&crossing, &all_crossing, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);

  if (rank == 0) printf("{");
  print_slowest("dispatch", there, iterations);
  print_slowest("combine", back, iterations);
  if (rank == 0)
    printf("\"pairs\":{\"p50\":%.4f,\"p99\":%.4f},\"rows\":%lld,\"rowBytes\":%zu}\n", slowest[0] * 1000,
           slowest[1] * 1000, all_crossing, row_bytes);
  MPI_Finalize();
  return 0;
}
