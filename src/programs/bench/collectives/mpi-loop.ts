// Open MPI, where it is installed: the same loops by its own collectives, built by mpicc for the run.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { packageFile } from '../../../core/package-file.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { BenchedKind, CollectivesWorkload, SizePlan } from './collectives-workload.ts';

export class MpiLoop implements Disposable {
  /** "mpirun (Open MPI) 4.1.4" */
  readonly version: string;
  readonly #folder: string;

  /** Fails with WL_UNSUPPORTED, telling what is missing. */
  static build(): MpiLoop {
    const version = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
    if (version.error !== undefined || version.status !== 0) throw missing('mpirun');
    const folder = mkdtempSync(join(tmpdir(), 'weftline-mpi-'));
    const source = fileURLToPath(packageFile('./mpi-loop.c', import.meta.url));
    const built = spawnSync('mpicc', ['-O2', source, '-o', join(folder, 'mpi-loop')], { encoding: 'utf8' });
    if (built.status === 0) return new MpiLoop(folder, version.stdout.split('\n')[0]!);
    rmSync(folder, { recursive: true });
    if (built.error !== undefined) throw missing('mpicc');
    throw new WeftlineError('WL_UNSUPPORTED', `Cannot compare with MPI: mpicc failed: ${built.stderr.trim()}`);
  }

  private constructor(folder: string, version: string) {
    this.#folder = folder;
    this.version = version;
  }

  /** By size, in the order of `sizes`: µs out of place and in place, of the slowest rank. Fails with WL_LAUNCH. */
  run(kind: BenchedKind, { ranks, dtype, op }: CollectivesWorkload, sizes: readonly SizePlan[]): Promise<number[][]> {
    const asRoot = process.getuid?.() === 0 ? ['--allow-run-as-root'] : [];
    const program = [join(this.#folder, 'mpi-loop'), kind, dtype, op];
    const list = sizes.map(({ bytes, warmup, iterations }) => `${bytes}:${warmup}:${iterations}`);
    const words = [...asRoot, '--oversubscribe', '-n', String(ranks), ...program, ...list];
    return new Promise((resolve, reject) => {
      const child = spawn('mpirun', words, { stdio: ['ignore', 'pipe', 'pipe'] });
      const texts = { out: '', errors: '' };
      child.stdout.on('data', (chunk: Buffer) => (texts.out += chunk.toString()));
      child.stderr.on('data', (chunk: Buffer) => (texts.errors += chunk.toString()));
      child.once('error', (cause) => reject(failed(cause.message)));
      child.once('close', (code) => {
        if (code !== 0) return reject(failed(`exit code ${code}: ${texts.errors.trim()}`));
        return resolve(
          texts.out
            .trim()
            .split('\n')
            .map((line) => line.split(' ').slice(1).map(Number)),
        );
      });
    });
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function missing(program: string): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `Cannot compare with MPI: ${program} is not installed (Debian: openmpi-bin, libopenmpi-dev); leave --compare out`,
    { details: { program } },
  );
}

function failed(why: string): WeftlineError {
  return new WeftlineError('WL_LAUNCH', `Cannot run the loop over MPI: mpirun: ${why}`);
}
