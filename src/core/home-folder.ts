// The user's home folder as the system knows it.
import { userInfo } from 'node:os';

/** Of the password database, HOME is not looked at; undefined if it has none. */
export function homeFolder(): string | undefined {
  try {
    const { homedir } = userInfo();
    return homedir.startsWith('/') ? homedir : undefined;
  } catch {
    return undefined;
  }
}
