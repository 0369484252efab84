// The user's home folder as the system knows it.
import { userInfo } from 'node:os';

/** From the password database, not from HOME; undefined if the database has none. */
export function homeFolder(): string | undefined {
  try {
    const { homedir } = userInfo();
    return homedir.startsWith('/') ? homedir : undefined;
  } catch {
    return undefined;
  }
}
