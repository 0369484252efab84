// Runs a compiled script on several ranks of this machine and collects what each of them printed and how it ended.
import { fileURLToPath } from 'node:url';
import { launch, type LaunchOptions, type OutputLine, type RankResult } from 'weftline/world';

/** Where no wait is to end at its deadline: on a busy machine some ranks start, or get a processor, long after others. */
const PATIENT_MS = '200000';

export interface RunRanksOptions {
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** After that long all ranks are stopped and the test fails with what they printed; ten minutes, which only a hang takes. */
  readonly timeoutMs?: number;
  /** How long the others may go on after one failed; 500 ms by default: enough where nothing depends on what they say. */
  readonly graceMs?: number;
  /** How often each rank that ends badly is started again. */
  readonly maxRestarts?: number;
  /** The job goes on while so many ranks are left. */
  readonly minRanks?: number;
  /** Settings of the launcher. */
  readonly settings?: LaunchOptions['settings'];
  /** Sees each line as it comes, for tests that act on a running job. */
  readonly onLine?: (line: OutputLine) => void;
}

export interface RankOutput extends RankResult {
  readonly stdout: readonly string[];
  readonly stderr: readonly string[];
}

export interface RunRanksResult {
  readonly exitCode: number;
  /** By rank. */
  readonly ranks: readonly RankOutput[];
  /** What the launcher said about ranks that failed. */
  readonly notices: readonly string[];
  /** All output in the order it came, to show when a test fails. */
  readonly transcript: string;
}

/** `script` is the URL of a compiled file: new URL('./support/x-rank.js', import.meta.url). */
export async function runRanks(ranks: number, script: URL, options: RunRanksOptions = {}): Promise<RunRanksResult> {
  const lines: OutputLine[] = [];
  const notices: string[] = [];
  const transcript = () =>
    [...lines.map(({ rank, stream, text }) => `[${rank}] ${stream}: ${text}`), ...notices].join('\n');
  const timeoutMs = options.timeoutMs ?? 600_000;
  const timeout = AbortSignal.timeout(timeoutMs);
  try {
    const result = await launch({
      command: [process.execPath, fileURLToPath(script), ...(options.args ?? [])],
      ranks,
      // The test runner's own variable would make a rank's output binary.
      env: {
        // Kernels of GPUs may wait until their deadline.
        ...(options.env?.['WEFTLINE_TEST_DEVICE'] === undefined && { WEFTLINE_TIMEOUT_MS: PATIENT_MS }),
        ...options.env,
        NODE_TEST_CONTEXT: undefined,
      },
      settings: { graceMs: options.graceMs ?? 500, ...options.settings },
      ...(options.maxRestarts !== undefined && { maxRestarts: options.maxRestarts }),
      ...(options.minRanks !== undefined && { minRanks: options.minRanks }),
      signal: timeout,
      onLine: (line) => {
        lines.push(line);
        options.onLine?.(line);
      },
      onNotice: (text) => notices.push(text),
    });
    const of = (rank: number, stream: OutputLine['stream']) =>
      lines.filter((line) => line.rank === rank && line.stream === stream).map(({ text }) => text);
    return {
      exitCode: result.exitCode,
      ranks: result.ranks.map((rank) => ({
        ...rank,
        stdout: of(rank.rank, 'stdout'),
        stderr: of(rank.rank, 'stderr'),
      })),
      notices,
      transcript: transcript(),
    };
  } catch (error) {
    if (!timeout.aborted) throw error;
    throw new Error(`The ranks of ${script.pathname} were not done within ${timeoutMs} ms:\n${transcript()}`, {
      cause: error,
    });
  }
}

/** The last line of standard output as JSON: how rank scripts return values to their tests. */
export function resultOf(output: RankOutput | undefined): unknown {
  return JSON.parse(output?.stdout.at(-1) ?? 'null');
}
