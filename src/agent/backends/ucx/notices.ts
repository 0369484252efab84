// What the far side of a link is told beside data and acknowledgements, in order: refusals, rights to regions. Hot path: no allocation.
import { linkWord } from '../../../abi/ucx-words.ts';
import { ucxMessageKinds } from '../../../abi/ucx-message.ts';
import { NOTICE_FIELDS, NOTICES } from './link-block.ts';
import { hasReturned } from './memory-use.ts';
import { headerWord as at } from './message-header.ts';
import type { LinkTools, Sender } from './sender.ts';

export class Notices {
  readonly #tools: LinkTools;
  readonly #sender: Sender;

  constructor(tools: LinkTools, sender: Sender) {
    this.#tools = tools;
    this.#sender = sender;
  }

  /** For others than refusals, of which there are at most as many as messages in a window. */
  get hasRoom(): boolean {
    const { words } = this.#tools.block;
    return ((words[linkWord.noticesTail]! - words[linkWord.noticesHead]!) | 0) < NOTICES / 2;
  }

  refuse(sequence: number, reason: number): void {
    this.#push(ucxMessageKinds.refuse, sequence, reason);
  }

  /** `kind`: grant, withdraw or release. A release goes when UCX has returned all that was sent before. */
  tell(kind: number, region: number, key: number): void {
    this.#push(kind, region, key);
  }

  /** False if nothing could be told. */
  flush(): boolean {
    const { block } = this.#tools;
    const sender = this.#sender;
    const link = block.words;
    let isBusy = false;
    while (link[linkWord.noticesHead] !== link[linkWord.noticesTail] && sender.hasControlRoom) {
      const place = (link[linkWord.noticesHead]! & (NOTICES - 1)) * NOTICE_FIELDS;
      const kind = block.notices[place]!;
      if (kind === ucxMessageKinds.release && !hasReturned(block, block.notices[place + 3]!)) return isBusy;
      const isRefusal = kind === ucxMessageKinds.refuse;
      sender.begin(kind, 0, isRefusal ? block.notices[place + 1]! : 0);
      const { words } = block.buffers;
      if (isRefusal) words[sender.base + at.reason] = block.notices[place + 2]!;
      else {
        words[sender.base + at.region] = block.notices[place + 1]!;
        words[sender.base + at.key] = block.notices[place + 2]!;
      }
      sender.sendControl(0);
      link[linkWord.noticesHead] = link[linkWord.noticesHead]! + 1;
      isBusy = true;
    }
    return isBusy;
  }

  #push(kind: number, value: number, detail: number): void {
    const { block } = this.#tools;
    const link = block.words;
    const place = (link[linkWord.noticesTail]! & (NOTICES - 1)) * NOTICE_FIELDS;
    block.notices[place] = kind;
    block.notices[place + 1] = value;
    block.notices[place + 2] = detail;
    block.notices[place + 3] = link[linkWord.sendsPushed]!;
    link[linkWord.noticesTail] = link[linkWord.noticesTail]! + 1;
    this.flush();
  }
}
