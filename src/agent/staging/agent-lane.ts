// A lane as the agent's thread has it: its number, and the ring of messages of its transfers.
import type { WeftlineError } from '../../core/errors.ts';
import type { BackendLink, BackendPeer } from '../backend.ts';
import { StagedMessages } from './staged-messages.ts';
import type { StagingThread } from './staging-thread.ts';

interface AgentLaneOptions {
  /** That it belongs to. */
  readonly link: Pick<BackendLink, 'error'>;
  readonly peer: BackendPeer;
  readonly connectionInfo: Uint8Array | undefined;
  readonly isPinned: boolean;
  readonly timeoutMs: number;
}

export class AgentLane {
  readonly thread: StagingThread;
  readonly number: number;
  readonly peer: string;
  readonly messages: StagedMessages;
  readonly link: Pick<BackendLink, 'error'>;
  #isClosed = false;

  static async open(thread: StagingThread, options: AgentLaneOptions): Promise<AgentLane> {
    const { link, peer, connectionInfo, isPinned, timeoutMs } = options;
    const messages = new StagedMessages();
    const plain = { peer, connectionInfo, isPinned, timeoutMs, messages: messages.buffer };
    const number = await thread.call('openLane', plain);
    return new AgentLane({ thread, number, peer: peer.name, messages, link });
  }

  private constructor(parts: Pick<AgentLane, 'thread' | 'number' | 'peer' | 'messages' | 'link'>) {
    this.thread = parts.thread;
    this.number = parts.number;
    this.peer = parts.peer;
    this.messages = parts.messages;
    this.link = parts.link;
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    return this.thread.laneError(this.number);
  }

  async close(): Promise<void> {
    if (this.#isClosed || this.thread.failure !== undefined) return;
    this.#isClosed = true;
    await this.thread.call('closeLane', this.number);
  }
}
