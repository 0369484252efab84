// Which prepared transfers of an engine may post ranges now: each connection has its share of the engine's requests, and
// its transfers take turns, so that none waits for a peer that is not its own, nor for the whole of a long one. Hot path.

/** Ranges of a connection that are under way at a time. */
const MAX_OF_CONNECTION = 8192;
/** Those of all connections. The engine has 2^16 requests for everything. */
const MAX_OF_ALL = 32_768;
/** A connection may always have so many, whatever the others have: as many as 1024 peers find room for. */
const MIN_OF_CONNECTION = 16;
/** Ranges that a transfer posts before it is the next one's turn. */
const TURN = 64;

/** The transfers of a connection with ranges that are not posted yet; the first has the turn. */
export interface PostQueue<Post> {
  readonly waiting: Post[];
  /** Ranges that it may still post. */
  left: number;
  /** Ranges that are under way. */
  underWay: number;
}

export class PostTurns<Post> {
  /** By connection. */
  readonly #queues: (PostQueue<Post> | undefined)[] = [];
  #underWay = 0;

  of(connection: number): PostQueue<Post> {
    return (this.#queues[connection] ??= { waiting: [], left: TURN, underWay: 0 });
  }

  /** True if a further range may be posted; if not, one of the connection is under way, after whose end it is asked again. */
  hasRoom({ underWay }: PostQueue<Post>): boolean {
    return underWay < MIN_OF_CONNECTION || (underWay < MAX_OF_CONNECTION && this.#underWay < MAX_OF_ALL);
  }

  began(queue: PostQueue<Post>): void {
    queue.underWay++;
    this.#underWay++;
  }

  ended(queue: PostQueue<Post>): void {
    queue.underWay--;
    this.#underWay--;
  }

  /** The one with the turn posts a range. False if its turn is over: then another has it. */
  goesOn(queue: PostQueue<Post>): boolean {
    if (queue.left > 0) {
      queue.left--;
      return true;
    }
    queue.waiting.push(queue.waiting.shift() as Post);
    queue.left = TURN;
    return false;
  }

  /** It has nothing more to post. */
  remove(queue: PostQueue<Post>, post: Post): void {
    const at = queue.waiting.indexOf(post);
    if (at < 0) return;
    queue.waiting.splice(at, 1);
    if (at === 0) queue.left = TURN;
  }
}
