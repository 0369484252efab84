// A transfer's copies in the hands of the thread that copies, from a post to its end.
import { jobStates, jobWord } from '../../../abi/copy-words.ts';
import { type CheckedCopies, type CopyJob } from './copy-lane.ts';
import type { CopyThread, LaneToPeer } from './copy-thread.ts';

export interface CopyHelp {
  readonly thread: CopyThread;
  readonly lane: LaneToPeer;
}

export class SharedCopies {
  readonly #help: CopyHelp;
  readonly #copies: CheckedCopies;
  #job: CopyJob | undefined;

  constructor(help: CopyHelp, copies: CheckedCopies) {
    this.#help = help;
    this.#copies = copies;
  }

  /** Allocates at the first call, and when the length of the message changes. */
  begin(message: Uint8Array | undefined): void {
    const { thread, lane } = this.#help;
    if (this.#job === undefined || (message !== undefined && message.length !== this.#job.message.length)) {
      this.#job = thread.makeJob(this.#copies, message?.length ?? 0, this.#job);
    }
    if (message !== undefined) this.#job.message.set(message);
    lane.copies.add(this.#job, message !== undefined);
  }

  /** Hot path. */
  get hasEnded(): boolean {
    return this.#job !== undefined && Atomics.load(this.#job.words, jobWord.state) === jobStates.ended;
  }

  /** Once it has ended: why, as CopyTable.copy says it, or REVOKED; 0 if all is copied and the message is sent. */
  get failure(): number {
    return this.#job?.words[jobWord.failure] ?? 0;
  }

  get isDone(): boolean {
    return this.hasEnded && this.failure === 0;
  }

  /** When it returns, nothing is copied any more. May wait for a step of a copy. */
  takeBack(): void {
    if (this.#job !== undefined) this.#help.lane.copies.remove(this.#job);
  }

  /** It must not be under way. */
  release(): void {
    if (this.#job !== undefined) this.#help.thread.forgetJob(this.#job);
    this.#job = undefined;
  }
}
