// What combine and a cached dispatch need to know of an earlier dispatch.
import type { Tensor } from '../../device/tensor.ts';
import type { RoutedTokens } from '../across-hosts/routed-tokens.ts';

/**
 * Made by EpBuffer.dispatch and valid as long as that buffer; may be used any number of times, for combine and for
 * cached dispatches, on all ranks alike. Close it when it is no longer needed (else the garbage collector does).
 */
export class DispatchHandle implements Disposable {
  /** @internal The buffer that made it, compared by identity. */
  readonly owner: object;
  /**
   * Number of the dispatch among the buffer's; ranks that use handles of different dispatches together get an error.
   * @internal
   */
  readonly sequence: number;
  /** Tokens that this rank sent. */
  readonly numTokens: number;
  /** Rows that this rank received; undefined after a GPU's dispatch with numWorstTokens, for which the host does not wait. */
  readonly numRecvTokens: number | undefined;
  /** Rows of the received tensors: numRecvTokens, or numWorstTokens if that was given. */
  readonly rows: number;
  /**
   * @internal i32 [T, ranks]: the row of each token at each rank, -1 where it does not go. On GPUs, a row in the numbering of
   * this rank's tokens, and behind the ranks a column for each other host: the place among the tokens that go there.
   */
  readonly rowTable: Tensor<'i32'>;
  /** @internal On a GPU, what its kernels need of the exchange (EpPlan); absent on the CPU. */
  readonly plan: Tensor<'u8'> | undefined;
  /** @internal What crosses to other hosts; absent in a group on one. */
  readonly routed: RoutedTokens | undefined;
  /** @internal On a GPU, rows that this rank sends to other hosts, one per token and host; as numRecvTokens. */
  readonly networkRows: number | undefined;
  /** @internal On a GPU with peers on other hosts: the rows at this host's ranks of tokens that come through this rank. */
  readonly forwardPlaces: Tensor<'i32'> | undefined;
  /** i32 [ranks, ranks] on the host: [s * ranks + d] = rows that ranks 0..s together send to d; as numRecvTokens. */
  readonly rankPrefixMatrix: Int32Array | undefined;
  /** i32 [rows]: the token's index at its source rank; -1 in the tail of a worst-case result. */
  readonly recvSrcIdx: Tensor<'i32'>;
  /** Received choices per local expert, each rounded up to expertAlignment; empty with numWorstTokens. */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly #memory: Disposable;

  /** @internal */
  constructor(
    parts: Omit<
      DispatchHandle,
      'close' | 'plan' | 'routed' | 'networkRows' | 'forwardPlaces' | typeof Symbol.dispose
    > & {
      networkRows?: number | undefined;
      plan?: Tensor<'u8'>;
      routed?: RoutedTokens | undefined;
      forwardPlaces?: Tensor<'i32'> | undefined;
      /** Owns the tables; the tensors are views. */
      memory: Disposable;
    },
  ) {
    this.#memory = parts.memory;
    this.owner = parts.owner;
    this.sequence = parts.sequence;
    this.numTokens = parts.numTokens;
    this.numRecvTokens = parts.numRecvTokens;
    this.rows = parts.rows;
    this.rowTable = parts.rowTable;
    this.plan = parts.plan;
    this.routed = parts.routed;
    this.networkRows = parts.networkRows;
    this.forwardPlaces = parts.forwardPlaces;
    this.rankPrefixMatrix = parts.rankPrefixMatrix;
    this.recvSrcIdx = parts.recvSrcIdx;
    this.numRecvTokensPerExpert = Object.freeze([...parts.numRecvTokensPerExpert]);
  }

  /** Gives its tables back at once rather than when it is collected. Idempotent. */
  close(): void {
    this.#memory[Symbol.dispose]();
    this.routed?.[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
