// Notices that the process at the far side of a link has ended, where UCX cannot tell.
import { linkWord } from '../../../abi/ucx-words.ts';
import { ReadinessSet } from '../../../native/readiness.ts';
import { failures } from './failure.ts';
import { endLink } from './sender.ts';
import type { UcxEngine } from './ucx-engine.ts';

/** How often a thread that works asks for processes that ended. */
export const PROCESS_CHECK_MS = 20;

export class ProcessWatch {
  readonly #set: ReadinessSet;

  /** `fd`: that of the set of the thread that made it. */
  constructor(fd?: number) {
    this.#set = new ReadinessSet(fd);
  }

  get fd(): number {
    return this.#set.fd;
  }

  /** `process` is a descriptor that is readable once the process has ended. */
  add(process: number, link: number): void {
    this.#set.add(process, link);
  }

  remove(process: number): void {
    this.#set.remove(process);
  }

  /** Asks the kernel. */
  hasEnded(): boolean {
    return this.#set.poll() > 0;
  }

  /** Under the lock: those that `hasEnded` found. They are not watched on: their descriptors would stay readable. */
  endLinks(engine: UcxEngine): void {
    const count = this.#set.poll();
    for (let at = 0; at < count; at++) {
      const block = engine.block(this.#set.numberAt(at));
      if (block.words[linkWord.isOpen] === 0) continue;
      this.remove(block.words[linkWord.process]!);
      endLink({ block, worker: engine.worker, tables: engine.tables }, failures.processEnded, 0);
    }
  }

  [Symbol.dispose](): void {
    this.#set[Symbol.dispose]();
  }
}
