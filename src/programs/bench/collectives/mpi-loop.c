// The peer of `weftline bench collectives --compare mpi`: the same loops over MPI's own collectives.
// Arguments: operation, dtype (f32 or i32), reduction, then size:warmup:iterations for each size.
// Rank 0 prints a line for each size: bytes, µs out of place, µs in place (of the slowest rank; 0 where there is none).
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ranks;
static const char *operation;
static MPI_Datatype type;
static MPI_Op reduction;
static char *input, *output;

static void call(size_t bytes, int inPlace) {
  const int all = (int)(bytes / 4), part = all / ranks;
  void *from = inPlace ? MPI_IN_PLACE : input;
  if (!strcmp(operation, "allToAll")) MPI_Alltoall(from, part, type, output, part, type, MPI_COMM_WORLD);
  else if (!strcmp(operation, "allGather")) MPI_Allgather(from, part, type, output, part, type, MPI_COMM_WORLD);
  else if (!strcmp(operation, "allReduce")) MPI_Allreduce(from, output, all, type, reduction, MPI_COMM_WORLD);
  else if (!strcmp(operation, "broadcast")) MPI_Bcast(output, all, type, 0, MPI_COMM_WORLD);
  else if (!strcmp(operation, "reduceScatter"))
    MPI_Reduce_scatter_block(from, inPlace ? input : output, part, type, reduction, MPI_COMM_WORLD);
  else if (!strcmp(operation, "reduce")) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (inPlace && rank != 0) from = output;
    MPI_Reduce(from, output, all, type, reduction, 0, MPI_COMM_WORLD);
  }
}

static double timeOf(size_t bytes, int inPlace, int warmup, int iterations) {
  for (int i = 0; i < warmup; i++) call(bytes, inPlace);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < iterations; i++) call(bytes, inPlace);
  double mine = (MPI_Wtime() - begin) / iterations * 1e6, slowest = 0;
  MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  return slowest;
}

int main(int count, char **words) {
  MPI_Init(&count, &words);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (count < 5) MPI_Abort(MPI_COMM_WORLD, 2);
  operation = words[1];
  type = strcmp(words[2], "i32") ? MPI_FLOAT : MPI_INT;
  reduction = !strcmp(words[3], "max") ? MPI_MAX : !strcmp(words[3], "min") ? MPI_MIN : MPI_SUM;
  size_t most = 0, bytes;
  int warmup, iterations;
  for (int i = 4; i < count; i++) {
    if (sscanf(words[i], "%zu:%d:%d", &bytes, &warmup, &iterations) != 3) MPI_Abort(MPI_COMM_WORLD, 2);
    if (bytes > most) most = bytes;
  }
  input = malloc(most), output = malloc(most);
  if (!input || !output) MPI_Abort(MPI_COMM_WORLD, 3);
  memset(input, 0, most), memset(output, 0, most);
  for (int i = 4; i < count; i++) {
    sscanf(words[i], "%zu:%d:%d", &bytes, &warmup, &iterations);
    const double apart = timeOf(bytes, 0, warmup, iterations);
    const double within = timeOf(bytes, 1, warmup, iterations);
    if (rank == 0) printf("%zu %.3f %.3f\n", bytes, apart, within), fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
