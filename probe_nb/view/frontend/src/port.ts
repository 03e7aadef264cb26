/**
 * What of the table is in view, measured before anything changes.
 *
 * To ask a page that was just changed where something stands makes the browser lay it all out at once: of an update that
 * asks in between, that was the longest part.
 */
export class Port {
  width = 0;
  height = 0;
  left = 0;
  top = 0;

  constructor(private readonly element: HTMLElement) {}

  measure(): void {
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = this.element;
    [this.width, this.height, this.left, this.top] = [clientWidth, clientHeight, scrollLeft, scrollTop];
  }

  /** Scroll to a height, if it is another one. */
  go(top: number): void {
    if (top === this.top) return;
    this.element.scrollTop = top;
    this.measure(); // it may be less: the table ends somewhere
  }
}
